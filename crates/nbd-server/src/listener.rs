//! Listening sockets of a server: Unix sockets, and TCP sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, accept_with, sockopt};
use unix_socket::listener::Listener;

/// A listening socket.
#[derive(Debug)]
pub enum NbdListener {
    /// A Unix socket.
    Unix(Listener),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl NbdListener {
    /// Listens on an address and a port of this host.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind_tcp(addr: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(addr).map(NbdListener::Tcp)
    }

    /// Continues with a listening TCP socket of another process.
    #[must_use]
    pub fn from_tcp_fd(fd: OwnedFd) -> Self {
        NbdListener::Tcp(TcpListener::from(fd))
    }

    /// A duplicate of a TCP socket; `None` for a Unix socket.
    #[must_use]
    pub fn duplicate_tcp(&self) -> Option<io::Result<OwnedFd>> {
        match self {
            NbdListener::Unix(_) => None,
            NbdListener::Tcp(listener) => Some(listener.as_fd().try_clone_to_owned()),
        }
    }

    /// The address of a TCP socket.
    #[must_use]
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        match self {
            NbdListener::Unix(_) => None,
            NbdListener::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            NbdListener::Unix(listener) => listener.socket().set_nonblocking(true),
            NbdListener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    /// Accepts the next client, as a non-blocking socket.
    pub(crate) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        let socket = accept_with(self, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        if let NbdListener::Tcp(_) = self {
            // A reply goes out at once, and a client that has vanished is noticed. Neither is essential; ignore errors.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
        }
        Ok(socket)
    }
}

impl AsFd for NbdListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            NbdListener::Unix(listener) => listener.socket().as_fd(),
            NbdListener::Tcp(listener) => listener.as_fd(),
        }
    }
}
