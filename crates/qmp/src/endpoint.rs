//! The socket on which a monitor serves QMP: one that listens, or one that is connected.

use std::os::unix::net::UnixStream;

use unix_socket::listener::Listener;

/// The socket of a monitor, from which its clients come.
#[derive(Debug)]
pub enum Endpoint {
    /// A socket that they connect to, and a client that did so before the monitor was there.
    Listening(Listener, Option<UnixStream>),
    /// A socket with the client at its other end.
    Connected(UnixStream),
}
