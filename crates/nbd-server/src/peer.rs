//! The other side of a client's socket, for the log: lines about one client must not hide those about others.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::{SocketAddrAny, sockopt};

/// The user or the host that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The number of a user of this host.
    User(u32),
    /// A host, or a program of this one that uses TCP.
    Host(IpAddr),
    Unknown,
}

impl Peer {
    /// That of an accepted TCP socket, by the address that accept(2) returned.
    pub fn of_tcp(address: Option<SocketAddrAny>) -> Self {
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        address.map_or(Peer::Unknown, |address| {
            Peer::Host(address.ip().to_canonical())
        })
    }

    /// That of a Unix socket.
    pub fn of_unix(socket: impl AsFd) -> Self {
        sockopt::socket_peercred(socket).map_or(Peer::Unknown, |peer| Peer::User(peer.uid.as_raw()))
    }

    pub fn uid(self) -> Option<u32> {
        match self {
            Peer::User(uid) => Some(uid),
            Peer::Host(_) | Peer::Unknown => None,
        }
    }

    pub fn host(self) -> Option<String> {
        match self {
            Peer::Host(address) => Some(address.to_string()),
            Peer::User(_) | Peer::Unknown => None,
        }
    }
}
