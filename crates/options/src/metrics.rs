//! Value of `--metrics`: the address at which metrics are served over HTTP, and its parser.

use std::{fmt, net, path::PathBuf};

use crate::{SocketAddr, socket};

/// The expected text of an address.
pub(crate) const ADDR_EXPECTED: &str = "unix:PATH (1 to 107 bytes), tcp:IP:PORT such as tcp:127.0.0.1:9465, or fd:FD \
     (number or name of a listening Unix socket that was inherited)";

/// The address of the metrics server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddr {
    /// `unix:PATH` or `fd:FD`: a Unix socket.
    Socket(SocketAddr),
    /// `tcp:IP:PORT`: an IP address of this host; names are not resolved. Port 0 is any free port.
    Tcp(net::SocketAddr),
}

impl MetricsAddr {
    /// The address of this text, as its `Display` writes it; `None` if it is malformed.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        match kind {
            "unix" if socket::is_socket_path(value.as_bytes()) => {
                let path = PathBuf::from(value);
                Some(Self::Socket(SocketAddr::Unix { path }))
            }
            "tcp" => value.parse().ok().map(Self::Tcp),
            "fd" => socket::parse_fd_number_or_name(value).map(Self::Socket),
            _ => None,
        }
    }

    /// The same with an error that names what is expected, for `serve`.
    pub(crate) fn parse_argument(text: &str) -> Result<Self, String> {
        Self::from_text(text).ok_or_else(|| format!("expected {ADDR_EXPECTED}"))
    }
}

impl fmt::Display for MetricsAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(SocketAddr::Unix { path }) => write!(f, "unix:{}", path.display()),
            Self::Socket(SocketAddr::Fd { fd }) => write!(f, "fd:{fd}"),
            Self::Socket(SocketAddr::FdName { name }) => write!(f, "fd:{name}"),
            Self::Tcp(addr) => write!(f, "tcp:{addr}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let right = "unix:/run/m unix:m:1 tcp:127.0.0.1:9465 tcp:[::1]:0 fd:3 fd:metrics.socket";
        for right in right.split(' ') {
            let read = MetricsAddr::from_text(right).map(|addr| addr.to_string());
            assert_eq!(read.as_deref(), Some(right));
        }
        let wrong = " /run/m unix: tcp:9465 tcp:localhost:9465 tcp:1.2.3.4 fd:-1 http://127.0.0.1:9465 UNIX:m";
        let long = format!("unix:{}", "x".repeat(108));
        for wrong in wrong.split(' ').chain([&*long]) {
            assert_eq!(MetricsAddr::from_text(wrong), None, "{wrong}");
        }
    }
}
