//! A front-end's connection to a server that may end at any moment.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::wire::*;

/// The server has ended, or has sent us away.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone;

pub struct Link {
    stream: UnixStream,
    wire: Wire,
}

impl Link {
    pub fn new(stream: UnixStream) -> Self {
        let wire = Wire::of(stream.try_clone().unwrap());
        Link { stream, wire }
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// A message that is not answered.
    pub fn tell(&self, request: u32, payload: &[u8]) {
        self.wire.message(request, VERSION, payload, &[]);
    }

    /// A message that is acknowledged, and all right.
    pub fn must(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Gone> {
        let answer = self.wire.ask(request, payload, fds).ok_or(Gone)?;
        assert_eq!(answer, u64s(&[0]), "request {request}");
        Ok(())
    }

    /// A message that is answered.
    pub fn asked(&self, request: u32, payload: &[u8]) -> Result<Vec<u8>, Gone> {
        self.wire.message(request, VERSION, payload, &[]);
        self.wire.reply(request).ok_or(Gone)
    }

    /// The same with an answer that brings a file.
    pub fn asked_file(&self, request: u32, payload: &[u8]) -> Result<(Vec<u8>, OwnedFd), Gone> {
        self.wire.message(request, VERSION, payload, &[]);
        let mut head = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut head)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let (Ok(_), Some(file)) = (received, file) else {
            return Err(Gone);
        };
        let mut payload = vec![0; u32_at(&head, 8) as usize];
        (&self.stream).read_exact(&mut payload).map_err(|_| Gone)?;
        Ok((payload, file))
    }
}
