//! A port of 127.0.0.1 for one server, also while that restarts.
//!
//! A socket that is bound but does not listen keeps the port from others: the kernel gives it neither to servers that take any port nor
//! to connections. With `SO_REUSEADDR`, set after it was bound, the server can bind to the same port, since it has that option too.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// A port that is reserved until this is dropped.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Any that is free.
    ///
    /// # Panics
    /// If none is.
    #[must_use]
    pub fn reserve() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        ReservedPort {
            address: getsockname(&socket).unwrap().try_into().unwrap(),
            _socket: socket,
        }
    }

    /// The address with this port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::deadline::{eventually, eventually_ok};

    #[test]
    fn server_listens_on_a_reserved_port_again_and_again() {
        let port = ReservedPort::reserve();
        for _ in 0..2 {
            // A program that another test is starting has the descriptor of the last server for a moment.
            let bind = || TcpListener::bind(port.address());
            let server = eventually_ok("the port is free", bind);
            // The port has a connection when the next server binds to it.
            let _client = TcpStream::connect(port.address()).unwrap();
            drop(server.accept().unwrap());
        }
        eventually("nothing listens", || {
            TcpStream::connect(port.address()).is_err()
        });
    }
}
