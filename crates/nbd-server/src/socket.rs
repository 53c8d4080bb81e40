//! The socket of a client: plain, or with a TLS session.
//!
//! A plain one is read and written by one system call, straight from and to the buffers of requests. With TLS data is copied once more.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use tls::{NonBlockingSocket, Session, socket_errno};

/// A non-blocking socket.
pub(crate) struct ClientSocket {
    fd: Arc<OwnedFd>,
    session: Option<Box<Session>>,
}

impl ClientSocket {
    pub fn plain(fd: OwnedFd) -> Self {
        let fd = Arc::new(fd);
        ClientSocket { fd, session: None }
    }

    /// Its descriptor, for [`has_hung_up`].
    pub fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// From here on everything is encrypted, beginning with a handshake.
    pub fn start_tls(&mut self, session: Session) {
        self.session = Some(Box::new(session));
    }

    /// Continues the handshake. `None`: the client is waited for. After the handshake: the name of the client's certificate.
    pub fn continue_tls_handshake(&mut self) -> io::Result<Option<Option<String>>> {
        let Some(session) = &mut self.session else {
            return Ok(Some(None));
        };
        match session.handshake(&mut NonBlockingSocket(self.fd.as_fd())) {
            Ok(()) => Ok(Some(session.peer_name())),
            Err(error) if is_temporary(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads into the pieces, in order. Fewer bytes than these have room for: the socket has no more, or
    /// [`has_more_to_read`](Self::has_more_to_read).
    pub fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> rustix::io::Result<usize> {
        let Some(session) = &mut self.session else {
            return rustix::io::readv(&*self.fd, pieces);
        };
        let stream = &mut NonBlockingSocket(self.fd.as_fd());
        session.begin_turn();
        let mut received = 0;
        for piece in pieces {
            let mut filled = 0;
            while filled < piece.len() {
                match session.read(stream, &mut piece[filled..]) {
                    Ok(0) => return Ok(received),
                    Ok(bytes) => (filled, received) = (filled + bytes, received + bytes),
                    Err(_) if received > 0 => return Ok(received),
                    Err(error) => return Err(socket_errno(&error)),
                }
            }
        }
        Ok(received)
    }

    /// Sends the pieces, in order, as far as the socket takes them. With TLS they are taken before they are sent: see
    /// [`has_unsent`](Self::has_unsent).
    pub fn send(&mut self, pieces: &[IoSlice<'_>]) -> rustix::io::Result<usize> {
        let Some(session) = &mut self.session else {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let no_descriptors = &mut SendAncillaryBuffer::default();
            return sendmsg(&*self.fd, pieces, no_descriptors, flags);
        };
        let sent = session.write(&mut NonBlockingSocket(self.fd.as_fd()), pieces);
        sent.map_err(|error| socket_errno(&error))
    }

    /// Whether the socket was too full for encrypted bytes.
    pub fn has_unsent(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.has_unsent())
    }

    /// Whether the next read may find something that the socket does not announce: bytes that TLS has received, the end, or more bytes
    /// after a turn whose budget is used up.
    pub fn has_more_to_read(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.has_more_to_read())
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        if let Some(session) = &mut self.session {
            session.close(&mut NonBlockingSocket(self.fd.as_fd()));
        }
    }
}

/// Whether the peer of a socket has closed it, or will send nothing more.
pub(crate) fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec::default();
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Whether a call may succeed later.
fn is_temporary(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
