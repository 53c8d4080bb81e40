//! Clients in the handshake: their sockets and unsent bytes, and a deadline for each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use nbd::server::{ExportDirectory, Handshake, HandshakeStep, Negotiated};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Bytes that are read at once. The unparsed ones before are less than an option.
const READ_BYTES: usize = 4096;

/// How often one client is read from before others have their turn.
const MAX_READS_PER_TURN: usize = 16;

/// A client in the handshake.
pub(crate) struct NegotiatingClient {
    socket: OwnedFd,
    handshake: Handshake,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// What follows when all is sent.
    next: Next,
    pub deadline: Option<Instant>,
}

enum Next {
    Continue,
    Transmission(Box<Negotiated>),
    End,
}

/// A client that has chosen an export.
pub(crate) struct NegotiatedClient {
    pub socket: OwnedFd,
    /// Bytes that were received after the handshake.
    pub received: Vec<u8>,
    pub negotiated: Negotiated,
}

/// The outcome of a client's turn.
pub(crate) enum Outcome {
    /// The client is waited for.
    Continue(NegotiatingClient),
    /// The handshake is complete.
    Complete(NegotiatedClient),
    /// The connection is closed.
    Closed,
}

impl NegotiatingClient {
    /// A client that was accepted, on a non-blocking socket.
    pub fn new(socket: OwnedFd, deadline: Option<Instant>) -> Self {
        NegotiatingClient {
            socket,
            handshake: Handshake::default(),
            received: Vec::new(),
            unsent: Handshake::greeting().to_vec(),
            next: Next::Continue,
            deadline,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether replies wait for the socket; nothing is read meanwhile.
    pub fn wants_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends and reads as far as possible, and as a turn permits: the socket announces again what was not read.
    pub fn run(mut self, exports: &dyn ExportDirectory) -> Outcome {
        let mut reads = 0;
        loop {
            match self.send_unsent() {
                Ok(true) => {}
                Ok(false) => return Outcome::Continue(self),
                Err(_) => return Outcome::Closed,
            }
            match self.next {
                Next::Continue => {}
                Next::End => return Outcome::Closed,
                Next::Transmission(negotiated) => {
                    return Outcome::Complete(NegotiatedClient {
                        socket: self.socket,
                        received: self.received,
                        negotiated: *negotiated,
                    });
                }
            }
            // What is unparsed may be a whole option that waited for its predecessors' replies.
            if !self.advance(exports) {
                return Outcome::Closed;
            }
            if self.wants_write() || !matches!(self.next, Next::Continue) {
                continue;
            }
            if reads == MAX_READS_PER_TURN {
                return Outcome::Continue(self);
            }
            reads += 1;
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return Outcome::Continue(self),
                Err(_) => return Outcome::Closed,
            }
        }
    }

    /// Sends what the socket takes. True: all is sent.
    fn send_unsent(&mut self) -> rustix::io::Result<bool> {
        while !self.unsent.is_empty() {
            match send(&self.socket, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives bytes. False: there are none yet.
    fn receive(&mut self) -> rustix::io::Result<bool> {
        let begin = self.received.len();
        self.received.resize(begin + READ_BYTES, 0);
        let result = rustix::io::read(&self.socket, &mut self.received[begin..]);
        let count = *result.as_ref().unwrap_or(&0);
        self.received.truncate(begin + count);
        match result {
            Ok(0) => Err(Errno::CONNRESET),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Handles the bytes that were received. False: the client has violated the protocol.
    fn advance(&mut self, exports: &dyn ExportDirectory) -> bool {
        let advanced = self
            .handshake
            .advance(&self.received, exports, &mut self.unsent);
        match advanced {
            Ok((consumed, step)) => {
                self.received.drain(..consumed);
                self.next = match step {
                    HandshakeStep::Continue => Next::Continue,
                    HandshakeStep::End => Next::End,
                    HandshakeStep::Transmission(negotiated) => Next::Transmission(negotiated),
                };
                true
            }
            Err(error) => {
                tracing::info!(%error, "an NBD client is disconnected in the handshake");
                false
            }
        }
    }
}
