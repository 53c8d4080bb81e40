//! Datagrams to `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::failure::Failure;

/// How long a manager that does not read is waited for, with what it must not miss.
const PATIENCE: Duration = Duration::from_secs(1);

/// The way to whoever wants to know our state.
pub(crate) struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl Notifier {
    /// An address is an absolute path, or a name without a file behind an `@`. None of an address of another kind
    /// (sd_notify(3) has `vsock:`, for machines): a disk is served all the same.
    pub fn new(address: &OsStr) -> Result<Option<Self>, Failure> {
        let manager = match address.as_bytes() {
            // As if it was not there.
            [] => return Ok(None),
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(address),
            _ => Err(io::Error::other("a path, or @ and a name, is supported")),
        };
        let manager = match manager {
            Ok(manager) => manager,
            Err(error) => {
                tracing::warn!(
                    address = %address.to_string_lossy(), %error,
                    advice = "if the service manager waits to hear that it is ready, start it with Type=exec",
                    "NOTIFY_SOCKET is not understood: the service manager is told nothing"
                );
                return Ok(None);
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Some(Notifier { socket, manager }))
    }

    /// Lines of `NAME=VALUE` that it must not miss: waits for it a little. Whoever does not listen any more is no
    /// reason to end.
    pub fn tell(&self, state: &str) {
        self.send(state);
    }

    /// The same of what can be said again later: never waits. False: there was no room for it.
    pub fn offer(&self, state: &str) -> bool {
        let without_waiting = |on| self.socket.set_nonblocking(on).is_ok();
        without_waiting(true) && {
            let sent = self.send(state);
            without_waiting(false) && sent
        }
    }

    fn send(&self, state: &str) -> bool {
        let sent = self.socket.send_to_addr(state.as_bytes(), &self.manager);
        if let Err(error) = &sent {
            tracing::debug!(%error, state, "the service manager cannot be told");
        }
        sent.is_ok()
    }
}
