//! The socket: one message at a time, descriptors beside it, an answer to each.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::wire::{HEADER_BYTES, Payload, Request, header, reply_bytes};
use crate::error::{Error, Result};

/// A server that does not answer for this long will not: stopping a queue waits for requests in
/// flight, nothing else takes time.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A connected socket.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    /// The server answers everything (`REPLY_ACK`): nothing fails unheard.
    pub(crate) acknowledged: bool,
}

impl Connection {
    /// Over a connected socket.
    ///
    /// # Errors
    /// [`Error::Io`] when it takes no time limits.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let limited = stream
            .set_read_timeout(Some(ANSWER_LIMIT))
            .and_then(|()| stream.set_write_timeout(Some(ANSWER_LIMIT)));
        limited.map_err(Error::io("limit a socket's waiting time"))?;
        Ok(Connection {
            stream,
            acknowledged: false,
        })
    }

    /// Sends a message that has no reply of its own.
    pub(crate) fn set(
        &mut self,
        request: Request,
        payload: &Payload,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        self.send(request, self.acknowledged, payload, fd)?;
        if !self.acknowledged {
            return Ok(());
        }
        match self.receive_u64(request)? {
            0 => Ok(()),
            code => Err(Error::Protocol(format!(
                "the server refused {request:?} (answer {code})"
            ))),
        }
    }

    /// Sends a message and returns its reply's payload.
    pub(crate) fn get(&mut self, request: Request, payload: &Payload) -> Result<Vec<u8>> {
        self.get_with_fd(request, payload)
            .map(|(payload, _)| payload)
    }

    /// The same for a reply that comes with a descriptor.
    pub(crate) fn get_with_fd(
        &mut self,
        request: Request,
        payload: &Payload,
    ) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        self.send(request, false, payload, None)?;
        self.receive(request)
    }

    /// The same for a reply that is a number.
    pub(crate) fn get_u64(&mut self, request: Request) -> Result<u64> {
        self.send(request, false, &Payload::default(), None)?;
        self.receive_u64(request)
    }

    fn send(
        &mut self,
        request: Request,
        need_reply: bool,
        payload: &Payload,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let payload = payload.bytes();
        // Payloads are of our own making and short.
        let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = header(request, need_reply, payload_bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            // There is space for the one that there is.
            let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed);
        }
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let sent = match sendmsg(&self.stream, &parts, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Gone),
            sent => sent.map_err(Error::io(format!("send {request:?} to the server")))?,
        };
        if sent != header.len() + payload.len() {
            // A blocking stream takes a message as short as ours whole, or has failed.
            return Err(Error::Protocol(format!("{request:?} was cut off")));
        }
        Ok(())
    }

    fn receive_u64(&mut self, request: Request) -> Result<u64> {
        let (payload, _) = self.receive(request)?;
        let number = payload.as_slice().try_into().map(u64::from_ne_bytes);
        number.map_err(|_| {
            Error::Protocol(format!(
                "the server's reply to {request:?} has {} bytes instead of 8",
                payload.len()
            ))
        })
    }

    fn receive(&mut self, request: Request) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; HEADER_BYTES];
        let fd = self.read_with_fd(&mut header, request)?;
        let bytes = reply_bytes(&header, request).ok_or_else(|| {
            Error::Protocol(format!("what the server sent is no reply to {request:?}"))
        })?;
        let mut payload = vec![0; bytes];
        self.read(&mut payload, request)?;
        Ok((payload, fd))
    }

    /// Descriptors come with a message's first byte.
    fn read_with_fd(&mut self, bytes: &mut [u8], request: Request) -> Result<Option<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.stream, &mut parts, &mut ancillary, flags)
            .map_err(|errno| unanswered(request, errno.into()))?
            .bytes;
        if got == 0 {
            return Err(Error::Gone);
        }
        let mut fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let fd = fds.next();
        self.read(&mut bytes[got..], request)?;
        Ok(fd)
    }

    fn read(&mut self, bytes: &mut [u8], request: Request) -> Result<()> {
        let read = self.stream.read_exact(bytes);
        read.map_err(|error| unanswered(request, error))
    }
}

fn unanswered(request: Request, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => Error::Gone,
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Protocol(format!(
            "no reply to {request:?} within {ANSWER_LIMIT:?}: does another front-end use this disk?"
        )),
        _ => Error::io(format!("wait for the server's reply to {request:?}"))(error),
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
