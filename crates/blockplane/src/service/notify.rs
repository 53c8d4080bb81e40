//! Datagrams to `NOTIFY_SOCKET`.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::Failure;

/// The way to whoever wants to know our state.
pub(super) struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl Notifier {
    /// An address is an absolute path, or a name without a file behind an `@`.
    pub fn new(address: OsString) -> Result<Self, Failure> {
        let manager = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(&address),
            _ => Err(io::Error::other("a path, or @ and a name, is expected")),
        };
        let manager = manager.map_err(|error| {
            let shown = address.to_string_lossy();
            format!("NOTIFY_SOCKET cannot be '{shown}': {error}")
        })?;
        let socket = UnixDatagram::unbound()?;
        Ok(Notifier { socket, manager })
    }

    /// Lines of `NAME=VALUE`. Whoever does not listen any more is no reason to end.
    pub fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.manager) {
            tracing::debug!(%error, state, "the service manager cannot be told");
        }
    }
}
