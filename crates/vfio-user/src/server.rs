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
        for _ in 0..MESSAGE_BUDGET {
            // Also after a message that has ended the connection.
            if !self.wants_read() || !self.read_message() {
                break;
            }
            self.writable();
        }
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
        let more = self.session.run(&mut self.device, now_ns);
        self.writable();
        more
    }

    /// Reads until a message is whole and carried out; false when there are no more bytes, or no connection.
    fn read_message(&mut self) -> bool {
        let mut fds = Vec::new();
        loop {
            let Some(socket) = &self.socket else {
                return false;
            };
            let (count, lost) = match receive(socket, self.session.incoming.wanted(), &mut fds) {
                Ok((0, _)) => break,
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return false,
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
            match self.session.received(count, &mut fds, &mut self.device) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        export = self.device.name(),
                        %error,
                        advice = "see what connects to this socket: it does not keep to vfio-user",
                        "bad message; the front-end is disconnected"
                    );
                    break;
                }
            }
        }
        self.disconnect();
        false
    }
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
