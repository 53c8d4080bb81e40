//! A socket that does not block, as the stream of a session.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

/// A connected socket: no call on it blocks or raises a signal, however it is set.
pub struct NonBlockingSocket<'a>(pub BorrowedFd<'a>);

impl Read for NonBlockingSocket<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (received, _) = recv(self.0, bytes, RecvFlags::DONTWAIT)?;
        Ok(received)
    }
}

impl Write for NonBlockingSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let no_descriptors = &mut SendAncillaryBuffer::default();
        Ok(sendmsg(self.0, pieces, no_descriptors, flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error of a session on a socket as a plain socket has it; `EPROTO` for an error of TLS.
#[must_use]
pub fn socket_errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        // The rest has to wait for the next turn.
        io::ErrorKind::Interrupted => Errno::INTR,
        _ => Errno::from_io_error(error).unwrap_or(Errno::PROTO),
    }
}
