//! A connection of a queue: its socket, with both directions.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use super::connect::Connected;
use super::disk::Disk;
use super::handshake::Negotiated;
use super::inbox::Inbox;
use super::lost::Lost;
use super::now_ns;
use super::outbox::{Outbox, SendEnd};
use super::records::Records;
use super::socket::Socket;
use super::sockets::SocketSet;

/// A connection.
pub(super) struct Connection {
    socket: Socket,
    negotiated: Negotiated,
    inbox: Inbox,
    sockets: Option<Rc<SocketSet>>,
    /// The event loop notices its events.
    is_watched: bool,
    watches_for_room: bool,
    /// The last submit phase left something, although the socket had room.
    has_more_to_send: bool,
    /// When it was made.
    pub since_ns: u64,
}

impl Connection {
    pub fn new(connected: Connected, sockets: Option<Rc<SocketSet>>) -> Self {
        let Connected { socket, negotiated } = connected;
        let watched = sockets.as_ref().map(|sockets| sockets.add(socket.as_fd()));
        Connection {
            is_watched: watched.is_some_and(|watched| watched.is_ok()),
            socket,
            negotiated,
            inbox: Inbox::new(),
            sockets,
            watches_for_room: false,
            has_more_to_send: false,
            since_ns: now_ns(),
        }
    }

    /// Whether events of the socket reach the loop. If not, the loop looks at it now and then.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether the next iteration has to follow at once.
    pub fn has_more_to_send(&self) -> bool {
        self.has_more_to_send
    }

    /// Whether the loop may wait for an event of the socket.
    pub fn is_drained(&self) -> bool {
        self.inbox.is_drained()
    }

    /// Sends requests.
    pub fn send(
        &mut self,
        outbox: &mut Outbox,
        disk: &Disk,
        records: &mut Records,
        answered: &mut Vec<u32>,
    ) -> Result<(), Lost> {
        let mut end = self.fill_socket(outbox, disk, records, answered)?;
        let begins_to_watch = end == SendEnd::Full && !self.watches_for_room;
        self.watch_for_room(end == SendEnd::Full);
        if begins_to_watch {
            // The server may have read everything before: an epoll instance that is never read tells of no event then, if the socket has
            // had one before.
            end = self.fill_socket(outbox, disk, records, answered)?;
        }
        self.has_more_to_send = end == SendEnd::OutOfBudget;
        Ok(())
    }

    /// Sends requests, and encrypted bytes that wait.
    fn fill_socket(
        &mut self,
        outbox: &mut Outbox,
        disk: &Disk,
        records: &mut Records,
        answered: &mut Vec<u32>,
    ) -> Result<SendEnd, Lost> {
        let with = (disk, &self.negotiated);
        let end = outbox.send(&mut self.socket, with, records, answered)?;
        let is_full = match &mut self.socket.tls {
            Some(tls) => !tls.send_unsent(self.socket.fd.as_fd()).map_err(Lost::Io)?,
            None => false,
        };
        Ok(if is_full { SendEnd::Full } else { end })
    }

    fn watch_for_room(&mut self, watch: bool) {
        if watch != self.watches_for_room
            && let Some(sockets) = &self.sockets
        {
            self.watches_for_room = watch;
            let changed = sockets.watch_for_room(self.socket.as_fd(), watch);
            self.is_watched &= changed.is_ok();
        }
    }

    /// Whether encrypted requests wait for room in the socket.
    pub fn has_unsent(&self) -> bool {
        let tls = self.socket.tls.as_ref();
        tls.is_some_and(|tls| tls.has_unsent())
    }

    /// Receives replies, and appends the requests whose piece was answered to `answered`.
    pub fn receive(&mut self, records: &mut Records, answered: &mut Vec<u32>) -> Result<(), Lost> {
        self.inbox
            .receive(&mut self.socket, self.negotiated.replies, records, answered)
    }

    /// Drops the data of a request that has completed, if the server is sending it.
    pub fn drop_data_of(&mut self, slot: u32) {
        self.inbox.drop_data_of(slot);
    }

    /// Ends the use of the socket, which is closed or used by others afterwards. `None` instead of the connection if something
    /// was received in part.
    pub fn into_idle(self) -> Option<Connected> {
        let is_empty = self.inbox.is_empty();
        let negotiated = self.negotiated;
        let socket = self.into_unwatched_socket();
        is_empty.then_some(Connected { socket, negotiated })
    }

    /// The socket, which events are no longer watched of.
    pub fn into_socket(self) -> OwnedFd {
        self.into_unwatched_socket().fd
    }

    fn into_unwatched_socket(self) -> Socket {
        if let Some(sockets) = &self.sockets {
            sockets.remove(self.socket.as_fd());
        }
        self.socket
    }
}
