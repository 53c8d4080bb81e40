//! Descriptors that the program was started with: by number, or by the name that the service manager
//! gave them.

use crate::{SocketAddr, size};

/// Longest name, as in systemd's `FileDescriptorName=`.
const MAX_NAME_BYTES: usize = 255;

pub(crate) const EXPECTED: &str =
    "the number of an inherited file descriptor, or the name that a service manager gave it";

/// What begins like a number has to be one; anything else may be a name.
pub(crate) fn read(text: &str) -> Option<SocketAddr> {
    if text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) {
        let number = size::integer(text).ok();
        return number
            .and_then(|fd| i32::try_from(fd).ok())
            .map(|fd| SocketAddr::Fd { fd });
    }
    let is_name = (1..=MAX_NAME_BYTES).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':');
    is_name.then(|| SocketAddr::FdName {
        name: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_neither() {
        assert_eq!(read("5"), Some(SocketAddr::Fd { fd: 5 }));
        let name = "blockplane@web.socket".to_owned();
        assert_eq!(read(&name), Some(SocketAddr::FdName { name }));
        for neither in [
            "",
            "-1",
            "+1",
            "5x",
            "99999999999",
            "a:b",
            "a b",
            "é",
            &"x".repeat(256),
        ] {
            assert_eq!(read(neither), None, "{neither}");
        }
    }
}
