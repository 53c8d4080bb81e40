//! Listening sockets of a server: Unix sockets, and TCP sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, listen, socket_with, sockopt,
};
use unix_socket::listener::Listener;

use crate::peer::Peer;

/// Connections that wait to be accepted, at most: as many as the standard library allows.
const BACKLOG: i32 = 128;

/// A listening socket.
#[derive(Debug)]
pub enum NbdListener {
    /// A Unix socket.
    Unix(Listener),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl NbdListener {
    /// Listens on an address and a port of this host. With `accepts_ipv4` the address `::` accepts clients by IPv4 as well (ipv6(7),
    /// `IPV6_V6ONLY`).
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn bind_tcp(addr: SocketAddr, accepts_ipv4: bool) -> io::Result<Self> {
        let family = match addr {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, !accepts_ipv4)?;
        }
        // The port of an earlier server can be bound although connections to it are in TIME_WAIT.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &addr)?;
        listen(&socket, BACKLOG)?;
        Ok(NbdListener::Tcp(TcpListener::from(socket)))
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
    pub(crate) fn accept(&self) -> rustix::io::Result<(OwnedFd, Peer)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, address) = acceptfrom_with(self, flags)?;
        let peer = match self {
            NbdListener::Unix(_) => Peer::of_unix(&socket),
            NbdListener::Tcp(_) => {
                // A reply goes out at once, and a client that has vanished is noticed. Neither is essential; ignore errors.
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                let _ = sockopt::set_socket_keepalive(&socket, true);
                Peer::of_tcp(address)
            }
        };
        Ok((socket, peer))
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

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn accepted_client_has_its_user_or_host() {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let listener = NbdListener::bind_tcp(any, true).unwrap();
        let port = listener.tcp_addr().unwrap().port();
        let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let (_socket, peer) = listener.accept().unwrap();
        assert_eq!(peer, Peer::Host(Ipv4Addr::LOCALHOST.into()));

        let (socket, _client) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(Peer::of_unix(&socket), Peer::User(uid));
    }

    #[test]
    fn all_addresses_include_those_of_ipv4_if_it_is_accepted() {
        for accepts_ipv4 in [false, true] {
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let listener = NbdListener::bind_tcp(any, accepts_ipv4).unwrap();
            let port = listener.tcp_addr().unwrap().port();
            assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok());
            let by_ipv4 = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
            assert_eq!(by_ipv4.is_ok(), accepts_ipv4);
        }
    }
}
