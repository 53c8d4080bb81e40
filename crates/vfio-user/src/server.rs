//! The socket side of a device's server: moves bytes between the connected socket of its only front-end and the
//! [`Session`], which has the protocol, without blocking calls.
//!
//! An iothread, which also serves the disks of the device, watches the server's descriptors and calls the methods for those that are
//! ready.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::device::{PciDevice, PciHost};
use crate::error::ProtocolViolation;
use crate::limits::{MAX_FDS, MESSAGE_BUDGET};
use crate::session::Session;

/// The server of a device, for one front-end at a time.
///
/// Times are those of one monotonic clock.
pub struct Server<D> {
    device: D,
    session: Session,
    socket: Option<UnixStream>,
    connections: u64,
}

impl<D: PciDevice> Server<D> {
    /// A server without a front-end.
    #[must_use]
    pub fn new(device: D) -> Self {
        Server {
            session: Session::new(device.name()),
            device,
            socket: None,
            connections: 0,
        }
    }

    /// Serves a front-end that has connected.
    ///
    /// # Errors
    /// Returns the socket if there is a front-end already, or if it cannot be made non-blocking.
    pub fn attach_connection(&mut self, socket: UnixStream) -> Result<(), UnixStream> {
        if self.socket.is_some() || socket.set_nonblocking(true).is_err() {
            return Err(socket);
        }
        tracing::info!(export = self.device.name(), "front-end connected");
        self.connections += 1;
        self.socket = Some(socket);
        self.session.bus.connected = true;
        Ok(())
    }

    /// Ends the connection, if there is one. Requests of the device that are in flight go on.
    pub fn disconnect(&mut self) {
        if self.socket.is_some() {
            self.session.clear_connection_state(&mut self.device);
            self.socket = None;
            self.connections += 1;
            tracing::info!(export = self.device.name(), "front-end disconnected");
        }
    }

    /// The socket to watch, if a front-end is connected, as [`Server::wants_read`] and
    /// [`Server::wants_write`] say.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether to call [`Server::handle_readable`] when the socket is readable.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        self.socket.is_some() && self.session.has_room_for_output()
    }

    /// Whether to call [`Server::handle_writable`] when the socket is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.socket.is_some() && !self.session.outgoing.unsent().is_empty()
    }

    /// The eventfd to watch for [`Server::handle_unmask`], if there is one.
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.session.bus.intx.unmask_fd()
    }

    /// A number that changes when [`Server::socket`] or [`Server::unmask_fd`] change.
    #[must_use]
    pub fn watched_descriptors_version(&self) -> u64 {
        self.connections + self.session.bus.intx.generation
    }

    /// When to call [`Server::do_pending_work`] even if no descriptor is ready.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.session.bus.dma.deadline_ns()
    }

    /// The device and its bus. Call [`Server::do_pending_work`] afterwards.
    pub fn device_and_host(&mut self) -> (&mut D, &mut dyn PciHost) {
        (&mut self.device, &mut self.session.bus)
    }

    /// Reads and handles a bounded number of messages. Call [`Server::do_pending_work`] afterwards.
    pub fn handle_readable(&mut self, now_ns: u64) {
        self.session.bus.now_ns = now_ns;
        let mut left = MESSAGE_BUDGET;
        loop {
            left = self.handle_received_within_budget(left);
            // `wants_read` is also false after a message that has ended the connection.
            if left == 0 || !self.wants_read() {
                return;
            }
            match self.read_socket_or_disconnect() {
                SocketReadResult::Nothing => return,
                SocketReadResult::MayHaveMore => {}
                // If more bytes come, the socket becomes readable again.
                SocketReadResult::Drained => {
                    self.handle_received_within_budget(left);
                    return;
                }
            }
        }
    }

    /// Polls the socket: true if there are messages, which [`Server::do_pending_work`] handles. For an event loop that
    /// expects a message soon and does not sleep.
    pub fn has_or_reads_message(&mut self) -> bool {
        if !self.wants_read() {
            return false;
        }
        // Messages that were received already are handled first.
        self.session.incoming.has_message()
            || self.read_socket_or_disconnect() != SocketReadResult::Nothing
            || self.socket.is_none()
    }

    /// Handles up to `left` messages that were received. Returns how many more it could have handled.
    fn handle_received_within_budget(&mut self, mut left: usize) -> usize {
        while left > 0 && self.wants_read() {
            match self.session.handle_next_message(&mut self.device) {
                Ok(true) => left -= 1,
                Ok(false) => break,
                Err(error) => {
                    self.disconnect_for_violation(&error);
                    break;
                }
            }
            self.handle_writable();
        }
        left
    }

    /// Sends as much as the socket takes.
    pub fn handle_writable(&mut self) {
        let Some(socket) = &self.socket else {
            return;
        };
        let outgoing = &mut self.session.outgoing;
        while !outgoing.unsent().is_empty() {
            match send(
                socket,
                outgoing.unsent(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(count) => outgoing.mark_sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.disconnect(),
            }
        }
    }

    /// Unmasks the interrupt if its eventfd was signalled.
    pub fn handle_unmask(&mut self) {
        self.session.bus.intx.unmask_if_eventfd_signalled();
    }

    /// Runs the device, and sends its messages. Call it after any other method, and after any event
    /// that the device may have waited for. True: there is more to do at once.
    pub fn do_pending_work(&mut self, now_ns: u64) -> bool {
        // Messages that were received and had to wait: the socket does not become readable for them.
        self.session.bus.now_ns = now_ns;
        self.handle_received_within_budget(MESSAGE_BUDGET);
        let more = self
            .session
            .run_device_and_append_messages(&mut self.device, now_ns);
        self.handle_writable();
        more || (self.wants_read() && self.session.incoming.has_message())
    }

    /// Reads from the socket once, if there is a connection.
    fn read_socket_or_disconnect(&mut self) -> SocketReadResult {
        let mut fds = Vec::new();
        loop {
            let Some(socket) = &self.socket else {
                return SocketReadResult::Nothing;
            };
            let room = self.session.incoming.compact_and_get_read_buffer();
            let wanted = room.len();
            let (count, lost) = match receive_bytes_and_fds(socket, room, &mut fds) {
                Ok((0, _)) => break,
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return SocketReadResult::Nothing,
                Err(_) => break,
            };
            if lost {
                tracing::warn!(
                    export = self.device.name(),
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "a message with more than {MAX_FDS} descriptors, or with more than this process may open; the \
                     front-end is disconnected"
                );
                break;
            }
            // A read that brings descriptors ends before the next message.
            let all = count < wanted && fds.is_empty();
            if let Err(error) = self.session.incoming.add_received(count, &mut fds) {
                self.disconnect_for_violation(&error);
                return SocketReadResult::Nothing;
            }
            return if all {
                SocketReadResult::Drained
            } else {
                SocketReadResult::MayHaveMore
            };
        }
        self.disconnect();
        SocketReadResult::Nothing
    }

    /// Disconnects a front-end that violates the protocol.
    fn disconnect_for_violation(&mut self, error: &ProtocolViolation) {
        tracing::warn!(
            export = self.device.name(),
            %error,
            advice = "check which program connects to this socket: it does not keep to vfio-user",
            "bad message; the front-end is disconnected"
        );
        self.disconnect();
    }
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SocketReadResult {
    /// No bytes, or the end of the connection.
    Nothing,
    /// All bytes of the socket.
    Drained,
    /// Some bytes; there may be more.
    MayHaveMore,
}

/// Reads bytes and descriptors. Returns the number of bytes, and whether descriptors were lost.
fn receive_bytes_and_fds(
    socket: &UnixStream,
    to: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<(usize, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(to)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    let lost = received.flags.contains(ReturnFlags::CTRUNC);
    Ok((received.bytes, lost))
}
