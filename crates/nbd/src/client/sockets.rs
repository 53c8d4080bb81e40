//! The sockets of all connections of one thread, behind one descriptor that its event loop watches.
//!
//! Connections come and go while the loop runs. It watches the epoll descriptor of this set, for edges, and never reads it:
//! each event of a socket is an edge of the set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// A set of sockets.
pub struct SocketSet(OwnedFd);

impl SocketSet {
    /// An empty set.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new() -> io::Result<Self> {
        Ok(SocketSet(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a socket.
    pub(super) fn add(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(
            &self.0,
            socket,
            EventData::new_u64(0),
            EventFlags::IN,
        )?)
    }

    /// Has the descriptor become readable also when a full socket has room again.
    pub(super) fn watch_for_room(&self, socket: BorrowedFd<'_>, watch: bool) -> io::Result<()> {
        let flags = match watch {
            true => EventFlags::IN | EventFlags::OUT,
            false => EventFlags::IN,
        };
        Ok(epoll::modify(
            &self.0,
            socket,
            EventData::new_u64(0),
            flags,
        )?)
    }

    /// Removes a socket, which may have other owners.
    pub(super) fn remove(&self, socket: BorrowedFd<'_>) {
        // Without memory for this, events of the old socket wake the loop in vain until it is closed.
        let _ = epoll::delete(&self.0, socket);
    }
}

impl AsFd for SocketSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
