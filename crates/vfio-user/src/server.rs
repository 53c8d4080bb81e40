//! A device and the socket of its front-end, as one thing that never blocks.
//!
//! Whoever runs it watches the descriptors that it names, and calls what has become ready: an iothread's event
//! loop, beside everything else that the device needs, or a [`crate::Driver`].

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use crate::device::{Host, PciDevice};
use crate::error::Violation;
use crate::limits::{MAX_FDS, MESSAGE_BUDGET};
use crate::session::Session;

/// A device that one front-end at a time may be connected to.
///
/// Times are those of any clock that only goes forward, always the same.
pub struct Server<D> {
    device: D,
    session: Session,
    socket: Option<UnixStream>,
    connections: u64,
}

impl<D: PciDevice> Server<D> {
    /// Nobody is connected yet.
    #[must_use]
    pub fn new(device: D) -> Self {
        Server {
            device,
            session: Session::new(),
            socket: None,
            connections: 0,
        }
    }

    /// A front-end has connected.
    ///
    /// # Errors
    /// Gives the socket back if there is a front-end already, or if it cannot be made non-blocking.
    pub fn connect(&mut self, socket: UnixStream) -> Result<(), UnixStream> {
        if self.socket.is_some() || socket.set_nonblocking(true).is_err() {
            return Err(socket);
        }
        tracing::info!(export = self.device.name(), "front-end connected");
        self.connections += 1;
        self.socket = Some(socket);
        self.session.bus.connected = true;
        Ok(())
    }

    /// Ends the connection, if there is one. What the device has under way goes on.
    pub fn disconnect(&mut self) {
        if self.socket.is_some() {
            self.session.disconnect(&mut self.device);
            self.socket = None;
            self.connections += 1;
            tracing::info!(export = self.device.name(), "front-end disconnected");
        }
    }

    /// The socket, if a front-end is connected. To be watched for what [`Server::wants_read`] and
    /// [`Server::wants_write`] say.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether [`Server::readable`] is to be called when the socket is readable.
    #[must_use]
    pub fn wants_read(&self) -> bool {
        self.socket.is_some() && self.session.wants_input()
    }

    /// Whether [`Server::writable`] is to be called when the socket is writable.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.socket.is_some() && !self.session.outgoing.unsent().is_empty()
    }

    /// If there is one, [`Server::unmasked`] is to be called when it is readable.
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.session.bus.intx.unmask_fd()
    }

    /// Another number when [`Server::socket`] or [`Server::unmask_fd`] have changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.connections + self.session.bus.intx.generation
    }

    /// When [`Server::run`] is to be called even if nothing happens.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.session.bus.dma.deadline_ns()
    }

    /// The device, and what it can reach. [`Server::run`] is to be called afterwards.
    pub fn device(&mut self) -> (&mut D, &mut dyn Host) {
        (&mut self.device, &mut self.session.bus)
    }

    /// Reads, carries out and answers a bounded number of messages. [`Server::run`] is to be called afterwards.
    pub fn readable(&mut self, now_ns: u64) {
        self.session.bus.now_ns = now_ns;
        let mut left = MESSAGE_BUDGET;
        loop {
            left = self.carry_out(left);
            // Also after a message that has ended the connection.
            if left == 0 || !self.wants_read() {
                return;
            }
            match self.read() {
                There::Nothing => return,
                There::More => {}
                // A socket that has more is readable again.
                There::All => {
                    self.carry_out(left);
                    return;
                }
            }
        }
    }

    /// Looks whether the front-end has said something: it is read, and carried out by [`Server::run`]. For whoever expects a
    /// message soon, and would have to be woken for it.
    pub fn look(&mut self) -> bool {
        if !self.wants_read() {
            return false;
        }
        // What is there already is carried out first.
        self.session.incoming.is_ready() || self.read() != There::Nothing || self.socket.is_none()
    }

    /// Carries out and answers what has been read, so many messages at most. How many more there might have been.
    fn carry_out(&mut self, mut left: usize) -> usize {
        while left > 0 && self.wants_read() {
            match self.session.carry_out_next(&mut self.device) {
                Ok(true) => left -= 1,
                Ok(false) => break,
                Err(error) => {
                    self.refuse(&error);
                    break;
                }
            }
            self.writable();
        }
        left
    }

    /// Sends what waits to be sent, as much as the socket takes.
    pub fn writable(&mut self) {
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
                Ok(count) => outgoing.sent(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.disconnect(),
            }
        }
    }

    /// The front-end may have unmasked the interrupt.
    pub fn unmasked(&mut self) {
        self.session.bus.intx.unmask_signalled();
    }

    /// Gives the device its turn, and sends what comes of that. To be called after anything else that is called
    /// here, and after anything that the device may have waited for. True: there is more to do at once.
    pub fn run(&mut self, now_ns: u64) -> bool {
        // What was read and had to wait: its socket does not become readable for it.
        self.session.bus.now_ns = now_ns;
        self.carry_out(MESSAGE_BUDGET);
        let more = self.session.run(&mut self.device, now_ns);
        self.writable();
        more || (self.wants_read() && self.session.incoming.is_ready())
    }

    /// Reads what is there, if there is a connection.
    fn read(&mut self) -> There {
        let mut fds = Vec::new();
        loop {
            let Some(socket) = &self.socket else {
                return There::Nothing;
            };
            let room = self.session.incoming.room();
            let wanted = room.len();
            let (count, lost) = match receive(socket, room, &mut fds) {
                Ok((0, _)) => break,
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return There::Nothing,
                Err(_) => break,
            };
            if lost {
                tracing::warn!(
                    export = self.device.name(),
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "a message with more descriptors than the {MAX_FDS} that may be, or than there is room for; the \
                     front-end is disconnected"
                );
                break;
            }
            // Descriptors end a read early.
            let all = count < wanted && fds.is_empty();
            if let Err(error) = self.session.incoming.received(count, &mut fds) {
                self.refuse(&error);
                return There::Nothing;
            }
            return if all { There::All } else { There::More };
        }
        self.disconnect();
        There::Nothing
    }

    /// The front-end does not keep to the protocol.
    fn refuse(&mut self, error: &Violation) {
        tracing::warn!(
            export = self.device.name(),
            %error,
            advice = "see what connects to this socket: it does not keep to vfio-user",
            "bad message; the front-end is disconnected"
        );
        self.disconnect();
    }
}

/// What a read has found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    Nothing,
    All,
    /// There may be more.
    More,
}

/// Reads bytes and descriptors; says how many bytes, and whether descriptors were lost.
fn receive(
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
