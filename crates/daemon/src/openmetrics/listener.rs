//! The non-blocking listening socket of the metrics endpoint, TCP or Unix.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, accept_with};
use unix_socket::listener::{BindError, Listener};

/// Error when the listening socket is created.
#[derive(Debug, thiserror::Error)]
pub enum HttpListenError {
    /// A Unix socket could not be bound.
    #[error(transparent)]
    Unix(#[from] BindError),
    /// A TCP address could not be bound.
    #[error(
        "cannot listen on tcp:{addr}: {error}; choose another port, or an address of this host"
    )]
    Tcp {
        /// The address.
        addr: SocketAddr,
        /// The kernel's error.
        error: io::Error,
    },
    /// The socket could not be made non-blocking.
    #[error("cannot make the listening socket non-blocking: {0}")]
    Io(#[from] io::Error),
}

/// A non-blocking listening socket.
#[derive(Debug)]
pub struct HttpListener(HttpListeningSocket);

/// The listening socket by its family.
#[derive(Debug)]
enum HttpListeningSocket {
    Unix(Listener),
    Tcp(TcpListener),
}

impl HttpListener {
    /// Takes a listening Unix socket.
    ///
    /// # Errors
    /// [`HttpListenError`].
    pub fn from_unix(listener: Listener) -> Result<Self, HttpListenError> {
        listener.socket().set_nonblocking(true)?;
        Ok(HttpListener(HttpListeningSocket::Unix(listener)))
    }

    /// Listens on an address and a port; port 0 is any free port.
    ///
    /// # Errors
    /// [`HttpListenError`].
    pub fn bind_tcp(addr: SocketAddr) -> Result<Self, HttpListenError> {
        let listener =
            TcpListener::bind(addr).map_err(|error| HttpListenError::Tcp { addr, error })?;
        listener.set_nonblocking(true)?;
        Ok(HttpListener(HttpListeningSocket::Tcp(listener)))
    }

    /// Continues with a listening TCP socket of another process.
    ///
    /// # Errors
    /// Errors of fcntl(2).
    pub fn from_tcp_fd(fd: OwnedFd) -> Result<Self, HttpListenError> {
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true)?;
        Ok(HttpListener(HttpListeningSocket::Tcp(listener)))
    }

    /// The address that it is bound to; `None` for a Unix socket.
    #[must_use]
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            HttpListeningSocket::Unix(_) => None,
            HttpListeningSocket::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    /// Accepts the next client, as a non-blocking socket.
    pub(crate) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        accept_with(self, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }
}

impl AsFd for HttpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            HttpListeningSocket::Unix(listener) => listener.socket().as_fd(),
            HttpListeningSocket::Tcp(listener) => listener.as_fd(),
        }
    }
}
