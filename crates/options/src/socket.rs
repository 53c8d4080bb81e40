//! Addresses of listening Unix sockets, and their parsers: a path to listen on, or a listening socket that the program
//! was started with, by its number or by the name that the service manager gave it.

use std::path::PathBuf;

use crate::size;

/// The address of a listening Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketAddr {
    /// `addr.type=unix,addr.path=…`: a Unix socket to create and listen on; the path has 1 to 107
    /// bytes.
    Unix {
        /// Path of the socket.
        path: PathBuf,
    },
    /// `addr.type=fd,addr.str=…`: a listening Unix socket that the program was started with.
    Fd {
        /// Its number, 0 or more.
        fd: i32,
    },
    /// A listening Unix socket that the program was started with, by name.
    FdName {
        /// The name that the service manager gave it (`LISTEN_FDNAMES`).
        name: String,
    },
}

/// The expected text for the path of a Unix socket.
pub(crate) const SOCKET_EXPECTED: &str =
    "a path of 1 to 107 bytes (the kernel's limit for Unix sockets)";

/// Longest name, as in systemd's `FileDescriptorName=`.
const MAX_NAME_BYTES: usize = 255;

/// The expected text for an inherited socket.
pub(crate) const FD_EXPECTED: &str =
    "the number of an inherited file descriptor, or the name that a service manager gave it";

/// Reads the number or name of an inherited socket. A text that begins like a number has to be one.
pub(crate) fn parse_fd_number_or_name(text: &str) -> Option<SocketAddr> {
    if text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first)) {
        let number = size::parse_integer(text).ok();
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

/// Checks the path of a Unix socket (`unix(7)`: `sun_path` has 108 bytes, one for the final zero).
pub(crate) fn is_socket_path(path: &[u8]) -> bool {
    (1..=107).contains(&path.len()) && !path.contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_socket_has_a_number_or_a_name() {
        assert_eq!(parse_fd_number_or_name("5"), Some(SocketAddr::Fd { fd: 5 }));
        let name = "blockplane@web.socket".to_owned();
        assert_eq!(
            parse_fd_number_or_name(&name),
            Some(SocketAddr::FdName { name })
        );
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
            assert_eq!(parse_fd_number_or_name(neither), None, "{neither}");
        }
    }

    #[test]
    fn socket_paths_fit_the_kernels_limit() {
        assert!(is_socket_path(&[b'x'; 107]));
        assert!(!is_socket_path(&[b'x'; 108]) && !is_socket_path(b"") && !is_socket_path(b"a\0"));
    }
}
