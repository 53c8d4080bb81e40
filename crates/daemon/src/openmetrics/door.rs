//! Listening sockets of the endpoint.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{SocketFlags, accept_with};
use unix_socket::listener::{BindError, Listener};

/// Why there is nothing to listen on.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// A Unix socket.
    #[error(transparent)]
    Unix(#[from] BindError),
    /// An address.
    #[error(
        "cannot listen on tcp:{addr}: {error}; choose another port, or an address of this host"
    )]
    Tcp {
        /// Where.
        addr: SocketAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// A socket that is there.
    #[error("cannot listen without waiting: {0}")]
    Io(#[from] io::Error),
}

/// A listening socket that never makes who accepts wait.
#[derive(Debug)]
pub struct Door(Socket);

#[derive(Debug)]
enum Socket {
    Unix(Listener),
    Tcp(TcpListener),
}

impl Door {
    /// A Unix socket.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn unix(listener: Listener) -> Result<Self, DoorError> {
        listener.socket().set_nonblocking(true)?;
        Ok(Door(Socket::Unix(listener)))
    }

    /// An address and a port; with port 0 any that is free.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn tcp(addr: SocketAddr) -> Result<Self, DoorError> {
        let listener = TcpListener::bind(addr).map_err(|error| DoorError::Tcp { addr, error })?;
        listener.set_nonblocking(true)?;
        Ok(Door(Socket::Tcp(listener)))
    }

    /// A socket of an address that another process listens on.
    ///
    /// # Errors
    /// What fcntl(2) says.
    pub fn take_over(fd: OwnedFd) -> Result<Self, DoorError> {
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true)?;
        Ok(Door(Socket::Tcp(listener)))
    }

    /// The address that it got, if it is one.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Socket::Unix(_) => None,
            Socket::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    /// The next client, whom nobody waits for either.
    pub(crate) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        accept_with(self, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Socket::Unix(listener) => listener.socket().as_fd(),
            Socket::Tcp(listener) => listener.as_fd(),
        }
    }
}
