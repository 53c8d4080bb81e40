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
