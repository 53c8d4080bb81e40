//! Addresses of listening Unix sockets, and their parsers: a path to listen on, or a listening socket that the program
//! was started with, by its number or by the name that the service manager gave it.

use std::path::PathBuf;

use crate::{Problem, fields::Fields, size};

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

/// Refuses those of the keys of an address that do not belong to its type, whose word this is.
pub(crate) fn check_keys_of_addr_type(
    fields: &mut Fields,
    word: &str,
    own_keys: &[&str],
    all_keys: &[&'static str],
) -> Result<(), Problem> {
    for key in all_keys {
        if !own_keys.contains(key) && fields.take_raw(key).is_some() {
            let reason = format!(
                "'{key}' does not belong to 'addr.type={word}', which takes '{}'",
                own_keys.join("' and '")
            );
            return Err(Problem::Conflict { reason });
        }
    }
    Ok(())
}

/// Reads `addr.path`, of `addr.type=unix`.
pub(crate) fn read_unix_addr(fields: &mut Fields) -> Result<SocketAddr, Problem> {
    let path = fields.take_required_string(
        "addr.path",
        "write addr.path=PATH with the path of the socket to create",
    )?;
    if !is_socket_path(path.as_bytes()) {
        return Err(fields.bad_value_error("addr.path", &path, SOCKET_EXPECTED));
    }
    Ok(SocketAddr::Unix {
        path: PathBuf::from(path),
    })
}

/// Reads `addr.str`, of `addr.type=fd`.
pub(crate) fn read_fd_addr(fields: &mut Fields) -> Result<SocketAddr, Problem> {
    let text = fields.take_required_string(
        "addr.str",
        "write addr.str=FD with the number or name of a listening socket",
    )?;
    parse_fd_number_or_name(&text)
        .ok_or_else(|| fields.bad_value_error("addr.str", &text, FD_EXPECTED))
}

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
        let neither = "|-1|+1|5x|99999999999|a:b|a b|é".split('|');
        for neither in neither.chain([&*"x".repeat(256)]) {
            assert_eq!(parse_fd_number_or_name(neither), None, "{neither}");
        }
    }

    #[test]
    fn socket_paths_fit_the_kernels_limit() {
        assert!(is_socket_path(&[b'x'; 107]));
        assert!(!is_socket_path(&[b'x'; 108]) && !is_socket_path(b"") && !is_socket_path(b"a\0"));
    }
}
