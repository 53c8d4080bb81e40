//! A connection that waits for replies.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::SendFlags;
use vfio_user::wire::{Header, TYPE_REPLY};

use super::{Message, result};
use crate::fds::send_with_fds;
use crate::sockets::{connect, limited};

/// A connection.
#[derive(Debug)]
pub struct Connection(UnixStream);

impl Connection {
    /// Connects to a server that listens.
    pub fn connect(path: &Path) -> Self {
        Self::new(connect(path))
    }

    /// Over a socket that is connected.
    pub fn new(stream: UnixStream) -> Self {
        Connection(limited(stream))
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a command.
    pub fn send(&self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let bytes = Message::command(1, command, 0, payload).bytes();
        let sent = send_with_fds(&self.0, &bytes, fds, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()), "command {command}");
    }

    /// Sends bytes, which need not be a message. False: the server does not take them, now or any more.
    #[must_use]
    pub fn send_bytes(&self, bytes: &[u8]) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send_with_fds(&self.0, bytes, &[], flags) == Ok(bytes.len())
    }

    /// Waits for the next message, which must be a reply.
    #[track_caller]
    pub fn reply(&self) -> Message {
        let mut header = [0; Header::BYTES];
        self.fill(&mut header);
        let header = Header::decode(&header).unwrap();
        assert_eq!(header.flags, TYPE_REPLY, "{header:?}");
        let mut payload = vec![0; header.size as usize - Header::BYTES];
        self.fill(&mut payload);
        Message { header, payload }
    }

    #[track_caller]
    fn fill(&self, bytes: &mut [u8]) {
        let read = (&self.0).read_exact(bytes);
        read.unwrap_or_else(|error| panic!("a reply: {error}"));
    }

    /// Sends a command that succeeds, and waits for the payload of its reply.
    #[track_caller]
    pub fn call(&self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.send(command, payload, fds);
        result(&self.reply(), 1, command).unwrap()
    }

    /// Waits until the server closes the connection, or sends something: whether it has closed it.
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        match retry_on_intr(|| rustix::io::read(&self.0, &mut [0])) {
            Ok(count) => count == 0,
            // It has not read all that was sent.
            Err(Errno::CONNRESET) => true,
            Err(error) => panic!("neither a message nor an end: {error}"),
        }
    }
}
