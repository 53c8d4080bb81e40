//! The back-end channel (`SET_BACKEND_REQ_FD`): a socket on which the front-end is notified that the configuration space has
//! changed.
//!
//! That is the only message. The wire library has no such
//! message and keeps the channel's descriptor private, so we peek at the message that brings it before
//! the library reads it: `MSG_PEEK` duplicates the descriptors as well.
//!
//! No reply is requested, even where the protocol has one (`REPLY_ACK`): no thread here waits for a
//! front-end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recv,
    recvmsg, sendmsg,
};

/// Request, flags and size, 32 bits each, in the machine's byte order.
const HEADER_BYTES: usize = 12;
/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`: no payload.
const CONFIG_CHANGE_MSG: u32 = 2;
/// The flags of a message without a reply.
const VERSION_1: u32 = 1;

/// The result of sending a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// It is in the front-end's socket.
    Sent,
    /// The socket is full: the front-end does not read it.
    Full,
    /// The front-end has closed it.
    Closed,
}

/// The socket that the front-end has passed for our messages.
pub(crate) struct BackendChannel(OwnedFd);

impl BackendChannel {
    /// Waits for the next message and returns the channel if it brings one. The message stays in the socket:
    /// the library reads and checks it.
    pub fn wait_and_peek_in_next_message(connection: &UnixStream) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        let peek = || recv(connection, &mut header, RecvFlags::PEEK);
        // The library handles messages that come in pieces, and the end of the stream.
        let (_, count) = rustix::io::retry_on_intr(peek).ok()?;
        let [b0, b1, b2, b3, ..] = header;
        if count < HEADER_BYTES || u32::from_ne_bytes([b0, b1, b2, b3]) != SET_BACKEND_REQ_FD {
            return None;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
        recvmsg(
            connection,
            &mut [IoSliceMut::new(&mut header)],
            &mut control,
            flags,
        )
        .ok()?;
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next().map(BackendChannel),
            _ => None,
        })
    }

    /// Its socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends that the configuration space has changed. Never waits.
    pub fn send_config_changed(&self) -> SendOutcome {
        let message: [u8; HEADER_BYTES] = encode_header(CONFIG_CHANGE_MSG);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let send = || {
            sendmsg(
                &self.0,
                &[IoSlice::new(&message)],
                &mut SendAncillaryBuffer::default(),
                flags,
            )
        };
        match rustix::io::retry_on_intr(send) {
            Ok(_) => SendOutcome::Sent,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => SendOutcome::Full,
            Err(_) => SendOutcome::Closed,
        }
    }
}

/// The header of a message without a payload.
fn encode_header(request: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    for (word, value) in header.chunks_exact_mut(4).zip([request, VERSION_1, 0]) {
        word.copy_from_slice(&value.to_ne_bytes());
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Sends a message without a payload, with descriptors, as a front-end.
    fn send(to: &UnixStream, request: u32, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
        let header = encode_header(request);
        sendmsg(
            to,
            &[IoSlice::new(&header)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }

    #[test]
    fn peeking_at_a_channel_leaves_its_message_in_the_socket() {
        let (front_end, ours) = UnixStream::pair().unwrap();
        let (mut theirs, given) = UnixStream::pair().unwrap();
        send(&front_end, SET_BACKEND_REQ_FD, &[given.as_fd()]);
        let channel = BackendChannel::wait_and_peek_in_next_message(&ours).unwrap();
        assert_eq!(channel.send_config_changed(), SendOutcome::Sent);
        let mut message = [0; HEADER_BYTES];
        theirs.read_exact(&mut message).unwrap();
        assert_eq!(message, encode_header(CONFIG_CHANGE_MSG));
        // The message is still there.
        assert!(BackendChannel::wait_and_peek_in_next_message(&ours).is_some());
    }

    #[test]
    fn other_and_partial_messages_bring_no_channel() {
        let (front_end, ours) = UnixStream::pair().unwrap();
        let (_theirs, given) = UnixStream::pair().unwrap();
        send(&front_end, 5, &[given.as_fd(), given.as_fd()]);
        assert!(BackendChannel::wait_and_peek_in_next_message(&ours).is_none());
        let (front_end, ours) = UnixStream::pair().unwrap();
        send(&front_end, SET_BACKEND_REQ_FD, &[]);
        assert!(BackendChannel::wait_and_peek_in_next_message(&ours).is_none());
        let (mut front_end, ours) = UnixStream::pair().unwrap();
        front_end
            .write_all(&SET_BACKEND_REQ_FD.to_ne_bytes())
            .unwrap();
        assert!(BackendChannel::wait_and_peek_in_next_message(&ours).is_none());
        drop(front_end);
        let (_, ours) = UnixStream::pair().unwrap();
        assert!(BackendChannel::wait_and_peek_in_next_message(&ours).is_none());
    }

    #[test]
    fn sending_does_not_wait_for_a_front_end_that_does_not_read() {
        let (theirs, given) = UnixStream::pair().unwrap();
        let channel = BackendChannel(given.into());
        let mut sent = 0;
        while channel.send_config_changed() == SendOutcome::Sent {
            sent += 1;
            assert!(sent < 1 << 20, "a socket without an end");
        }
        assert_eq!(channel.send_config_changed(), SendOutcome::Full);
        drop(theirs);
        assert_eq!(channel.send_config_changed(), SendOutcome::Closed);
    }
}
