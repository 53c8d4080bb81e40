//! Sockets of monitors.

use std::os::unix::net::UnixStream;

use unix_socket::listener::Listener;

/// Where clients of a monitor come from.
#[derive(Debug)]
pub enum Endpoint {
    /// A socket that they connect to, and a client that did so before the monitor was there.
    Listening(Listener, Option<UnixStream>),
    /// A socket with the client at its other end.
    Connected(UnixStream),
}
