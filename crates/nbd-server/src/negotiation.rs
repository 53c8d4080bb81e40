//! Clients in the handshake: their sockets and unsent bytes, and a deadline for each.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use nbd::server::{ExportDirectory, Handshake, HandshakeStep, Negotiated};
use rustix::io::Errno;

use crate::peer::Peer;
use crate::socket::ClientSocket;
use crate::tls::ServerTls;

/// Bytes that are read at once. The unparsed ones before are less than an option.
const READ_BYTES: usize = 4096;

/// How often one client that sends no whole option is read from before others have their turn.
const MAX_READS_PER_TURN: usize = 16;

/// A client in the handshake.
pub(crate) struct NegotiatingClient {
    socket: ClientSocket,
    peer: Peer,
    handshake: Handshake,
    tls: Option<Arc<ServerTls>>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// What follows when all is sent.
    next: Next,
    may_have_more: bool,
    pub deadline: Option<Instant>,
}

enum Next {
    Continue,
    StartTls,
    /// The TLS handshake.
    Tls,
    Transmission(Box<Negotiated>),
    End,
}

/// A client that has chosen an export.
pub(crate) struct NegotiatedClient {
    pub socket: ClientSocket,
    pub peer: Peer,
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
    /// A client that was accepted, on a non-blocking socket. With `tls` nothing but TLS is answered.
    pub fn new(
        socket: OwnedFd,
        peer: Peer,
        tls: Option<Arc<ServerTls>>,
        deadline: Option<Instant>,
    ) -> Self {
        NegotiatingClient {
            socket: ClientSocket::plain(socket),
            peer,
            handshake: match tls {
                Some(_) => Handshake::requiring_tls(),
                None => Handshake::default(),
            },
            tls,
            received: Vec::new(),
            unsent: Handshake::greeting().to_vec(),
            next: Next::Continue,
            may_have_more: false,
            deadline,
        }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether replies wait for the socket; nothing is read meanwhile.
    pub fn wants_write(&self) -> bool {
        !self.unsent.is_empty() || self.socket.has_unsent()
    }

    /// Whether options may be there that the socket does not announce: the last turn ended before it had handled all.
    pub fn may_have_more(&self) -> bool {
        self.may_have_more
    }

    /// Logs that the time for the handshake is over.
    pub fn log_timeout(&self) {
        tracing::info!(
            uid = self.peer.uid(),
            host = self.peer.host(),
            "an NBD client is disconnected: its handshake takes too long"
        );
    }

    /// Sends, and reads until options can be handled: a turn handles as many as one call of [`Handshake::advance`] does.
    pub fn run(mut self, exports: &dyn ExportDirectory) -> Outcome {
        self.may_have_more = false;
        let mut reads = 0;
        let mut has_handled_options = false;
        loop {
            match self.send_unsent() {
                Ok(true) => {}
                Ok(false) => return Outcome::Continue(self),
                Err(_) => return Outcome::Closed,
            }
            match self.next {
                Next::Continue => {}
                Next::StartTls => match self.start_tls() {
                    true => continue,
                    false => return Outcome::Closed,
                },
                Next::Tls => match self.continue_tls() {
                    Ok(true) => {}
                    Ok(false) => return Outcome::Continue(self),
                    Err(()) => return Outcome::Closed,
                },
                Next::End => return Outcome::Closed,
                Next::Transmission(negotiated) => {
                    return Outcome::Complete(NegotiatedClient {
                        socket: self.socket,
                        peer: self.peer,
                        received: self.received,
                        negotiated: *negotiated,
                    });
                }
            }
            if has_handled_options || reads == MAX_READS_PER_TURN {
                self.may_have_more = true;
                return Outcome::Continue(self);
            }
            // What is unparsed may be whole options that waited for their turn.
            if !self.advance(exports) {
                return Outcome::Closed;
            }
            // An option that was handled has left a reply, or has ended the handshake.
            if self.wants_write() || !matches!(self.next, Next::Continue) {
                has_handled_options = true;
                continue;
            }
            reads += 1;
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return Outcome::Continue(self),
                Err(_) => return Outcome::Closed,
            }
        }
    }

    /// Begins the TLS handshake. False: it is not possible.
    fn start_tls(&mut self) -> bool {
        let session = self.tls.as_ref().map(|tls| tls.new_session());
        match session {
            Some(Ok(session)) => {
                self.socket.start_tls(session);
                self.next = Next::Tls;
                true
            }
            Some(Err(error)) => {
                tracing::error!(
                    uid = self.peer.uid(), host = self.peer.host(), %error,
                    "an NBD client is disconnected: no TLS session"
                );
                false
            }
            None => false,
        }
    }

    /// Continues the TLS handshake. True: it is complete, and the client may use the server. False: the client is waited for.
    fn continue_tls(&mut self) -> Result<bool, ()> {
        let checked = match self.socket.continue_tls_handshake() {
            Ok(None) => return Ok(false),
            Ok(Some(peer)) => self.tls.as_ref().map_or(Ok(()), |tls| tls.check_peer(peer)),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = checked {
            tracing::info!(
                uid = self.peer.uid(),
                host = self.peer.host(),
                error,
                "an NBD client is disconnected in the TLS handshake"
            );
            return Err(());
        }
        self.handshake.set_encrypted();
        self.next = Next::Continue;
        Ok(true)
    }

    /// Sends what the socket takes. True: all is sent.
    fn send_unsent(&mut self) -> rustix::io::Result<bool> {
        while self.wants_write() {
            match self.socket.send(&[IoSlice::new(&self.unsent)]) {
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
        let mut pieces = [IoSliceMut::new(&mut self.received[begin..])];
        let result = self.socket.receive(&mut pieces);
        let count = *result.as_ref().unwrap_or(&0);
        self.received.truncate(begin + count);
        match result {
            Ok(0) => Err(Errno::CONNRESET),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => {
                self.may_have_more = true;
                Ok(false)
            }
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
                    HandshakeStep::StartTls => Next::StartTls,
                    HandshakeStep::End => Next::End,
                    HandshakeStep::Transmission(negotiated) => Next::Transmission(negotiated),
                };
                true
            }
            Err(error) => {
                tracing::info!(
                    uid = self.peer.uid(), host = self.peer.host(), %error,
                    "an NBD client is disconnected in the handshake"
                );
                false
            }
        }
    }
}
