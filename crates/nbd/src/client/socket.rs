//! The socket of a connection: plain, or with a TLS session.
//!
//! A plain one is read and written by one system call, straight from and to the segments of requests. With TLS data is copied.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use engine::Errno;
use libc::iovec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tls::{NonBlockingSocket, Session, Stream, socket_errno};

use super::segments::copy_from;

/// Bytes of data that are encrypted at once.
const GATHERED_BYTES: usize = 64 << 10;

/// A socket, which does not block.
pub(super) struct Socket {
    pub fd: OwnedFd,
    pub tls: Option<Box<Encryption>>,
}

/// TLS of a connection.
pub(super) struct Encryption {
    session: Session,
    /// Data of requests on its way to the session.
    gathered: Vec<u8>,
}

impl Encryption {
    pub fn new(session: Session) -> Self {
        Encryption {
            session,
            gathered: Vec::new(),
        }
    }

    /// The session with a stream that blocks.
    pub fn stream<S: Read + Write>(&mut self, stream: S) -> Stream<'_, S> {
        let session = &mut self.session;
        Stream { session, stream }
    }

    /// Begins a turn of the thread.
    pub fn begin_turn(&mut self) {
        self.session.begin_turn();
    }

    /// Reads data.
    pub fn read(&mut self, socket: BorrowedFd<'_>, data: &mut [u8]) -> Result<usize, Errno> {
        let read = self.session.read(&mut NonBlockingSocket(socket), data);
        read.map_err(|error| socket_errno(&error))
    }

    /// Sends the data of a list, and returns how much of it was taken.
    ///
    /// # Safety
    /// The segments of the list are valid for reads. A guest may access them at the same time.
    pub unsafe fn send_list(
        &mut self,
        socket: BorrowedFd<'_>,
        list: &[iovec],
    ) -> Result<u64, Errno> {
        let mut rest: u64 = list.iter().map(|segment| segment.iov_len as u64).sum();
        let mut taken = 0;
        while rest > 0 {
            self.gathered.clear();
            let most = rest.min(GATHERED_BYTES as u64);
            // SAFETY: our caller promises that the segments are valid.
            unsafe { copy_from(list, taken, most, &mut self.gathered) };
            match self.write_gathered(socket) {
                Ok(bytes) => {
                    taken += bytes;
                    rest -= bytes;
                    if bytes < most {
                        break;
                    }
                }
                Err(Errno::AGAIN) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    fn write_gathered(&mut self, socket: BorrowedFd<'_>) -> Result<u64, Errno> {
        let data = [IoSlice::new(&self.gathered)];
        let taken = self.session.write(&mut NonBlockingSocket(socket), &data);
        taken
            .map(|bytes| bytes as u64)
            .map_err(|error| socket_errno(&error))
    }

    /// Whether the socket was too full for encrypted bytes.
    pub fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    /// Sends encrypted bytes that wait. False: the socket is full.
    pub fn send_unsent(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        match self.session.send_unsent(&mut NonBlockingSocket(socket)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(socket_errno(&error)),
        }
    }
}

impl Socket {
    pub fn plain(fd: OwnedFd) -> Self {
        Socket { fd, tls: None }
    }

    /// Whether the peer has ended the connection.
    pub fn has_ended(&self) -> bool {
        // `HUP` and `ERR` are always reported.
        let mut polled = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let count = poll(&mut polled, Some(&Timespec::default()));
        count.is_ok_and(|count| count > 0)
    }

    /// Sends a last message, and ends TLS. A socket that is full or broken is closed without.
    pub fn send_last(&mut self, message: &[u8]) {
        let mut io = NonBlockingSocket(self.fd.as_fd());
        match &mut self.tls {
            Some(tls) => {
                let _ = tls.session.write(&mut io, &[IoSlice::new(message)]);
                tls.session.close(&mut io);
            }
            None => drop(io.write(message)),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
