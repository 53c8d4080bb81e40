//! Sends notifications to the service manager, as datagrams to `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::error::BoxError;

/// How long [`ServiceNotifier::send`] waits for a manager that does not read its socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The notification socket of the service manager.
pub(crate) struct ServiceNotifier {
    socket: UnixDatagram,
    manager: SocketAddr,
}

impl ServiceNotifier {
    /// Creates a notifier for an address: an absolute path, or `@` and an abstract name. `None` with a warning for other
    /// kinds, such as `vsock:` (sd_notify(3)): disks must be served all the same.
    pub fn try_new(address: &OsStr) -> Result<Option<Self>, BoxError> {
        let manager = match address.as_bytes() {
            // Empty is the same as unset.
            [] => return Ok(None),
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(address),
            _ => Err(io::Error::other(
                "only a path, or @ and a name, is supported",
            )),
        };
        let manager = match manager {
            Ok(manager) => manager,
            Err(error) => {
                tracing::warn!(
                    address = %address.to_string_lossy(), %error,
                    advice = "if the service manager waits for the ready notification, use Type=exec",
                    "unsupported NOTIFY_SOCKET: the service manager is not notified"
                );
                return Ok(None);
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        Ok(Some(ServiceNotifier { socket, manager }))
    }

    /// Sends lines of `NAME=VALUE` that must arrive: waits for a short time if the socket is full. Errors are logged
    /// only: the daemon works without a service manager.
    pub fn send(&self, state: &str) {
        self.send_datagram(state);
    }

    /// Sends lines that can be repeated later, without waiting. False if there was no room.
    pub fn try_send(&self, state: &str) -> bool {
        let set_nonblocking = |nonblocking| self.socket.set_nonblocking(nonblocking).is_ok();
        set_nonblocking(true) && {
            let sent = self.send_datagram(state);
            set_nonblocking(false) && sent
        }
    }

    /// Sends a datagram; false if that failed.
    fn send_datagram(&self, state: &str) -> bool {
        let sent = self.socket.send_to_addr(state.as_bytes(), &self.manager);
        if let Err(error) = &sent {
            tracing::debug!(%error, state, "cannot notify the service manager");
        }
        sent.is_ok()
    }
}
