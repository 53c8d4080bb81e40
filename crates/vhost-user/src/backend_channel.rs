//! The channel on which we speak first: the back-end's messages to its front-end.
//!
//! There is one thing to say, that the configuration space has changed. The wire library knows no such
//! message and keeps the channel's descriptor to itself, so we look at the message that brings it before
//! the library reads it: a look at a socket's queue hands out the descriptors as well.
//!
//! No answer is asked for, even where the protocol has one (`REPLY_ACK`): nobody here waits for a
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
/// The flags of a message that wants no answer.
const VERSION_1: u32 = 1;

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is in the front-end's socket.
    Yes,
    /// The socket is full: the front-end does not read it.
    Full,
    /// The front-end has closed it.
    Closed,
}

/// A channel that the front-end has given us.
pub(crate) struct BackendChannel(OwnedFd);

impl BackendChannel {
    /// Waits for the next message and takes the channel if it brings one. The message stays where it is:
    /// whether it is a good one is for the library to say.
    pub fn ahead(connection: &UnixStream) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        let look = || recv(connection, &mut header, RecvFlags::PEEK);
        // What comes in pieces, or not at all, is the library's to refuse.
        let (_, count) = rustix::io::retry_on_intr(look).ok()?;
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

    /// Says that the configuration space has changed. Never waits.
    pub fn config_changed(&self) -> Told {
        let message: [u8; HEADER_BYTES] = header_of(CONFIG_CHANGE_MSG);
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
            Ok(_) => Told::Yes,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Told::Full,
            Err(_) => Told::Closed,
        }
    }
}

fn header_of(request: u32) -> [u8; HEADER_BYTES] {
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

    fn send(to: &UnixStream, request: u32, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
        let header = header_of(request);
        sendmsg(
            to,
            &[IoSlice::new(&header)],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }

    #[test]
    fn the_channel_is_found_and_its_message_stays_for_the_library() {
        let (front_end, ours) = UnixStream::pair().unwrap();
        let (mut theirs, given) = UnixStream::pair().unwrap();
        send(&front_end, SET_BACKEND_REQ_FD, &[given.as_fd()]);
        let channel = BackendChannel::ahead(&ours).unwrap();
        assert_eq!(channel.config_changed(), Told::Yes);
        let mut message = [0; HEADER_BYTES];
        theirs.read_exact(&mut message).unwrap();
        assert_eq!(message, header_of(CONFIG_CHANGE_MSG));
        // Once more: the message is still there.
        assert!(BackendChannel::ahead(&ours).is_some());
    }

    #[test]
    fn other_messages_and_pieces_bring_none() {
        let (front_end, ours) = UnixStream::pair().unwrap();
        let (_theirs, given) = UnixStream::pair().unwrap();
        send(&front_end, 5, &[given.as_fd(), given.as_fd()]);
        assert!(BackendChannel::ahead(&ours).is_none());
        let (front_end, ours) = UnixStream::pair().unwrap();
        send(&front_end, SET_BACKEND_REQ_FD, &[]);
        assert!(BackendChannel::ahead(&ours).is_none());
        let (mut front_end, ours) = UnixStream::pair().unwrap();
        front_end
            .write_all(&SET_BACKEND_REQ_FD.to_ne_bytes())
            .unwrap();
        assert!(BackendChannel::ahead(&ours).is_none());
        drop(front_end);
        let (_, ours) = UnixStream::pair().unwrap();
        assert!(BackendChannel::ahead(&ours).is_none());
    }

    #[test]
    fn a_front_end_that_does_not_read_holds_nobody_up() {
        let (theirs, given) = UnixStream::pair().unwrap();
        let channel = BackendChannel(given.into());
        let mut told = 0;
        while channel.config_changed() == Told::Yes {
            told += 1;
            assert!(told < 1 << 20, "a socket without an end");
        }
        assert_eq!(channel.config_changed(), Told::Full);
        drop(theirs);
        assert_eq!(channel.config_changed(), Told::Closed);
    }
}
