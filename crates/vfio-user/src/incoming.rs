//! Bytes and descriptors become messages.
//!
//! As much is read as is there: a guest rings its doorbells faster than they are heard, and a system call takes longer than what
//! each asks for. Descriptors still belong to one message. The kernel ends a read with the bytes that descriptors were
//! sent with (unix(7)), so they are those of the message that has the last byte of that read, however the sender has cut
//! it. Who sends several messages and descriptors in one call has them with the last.

use std::os::fd::OwnedFd;

use crate::error::Violation;
use crate::limits::{MAX_FDS, MAX_MESSAGE_BYTES, READ_AHEAD_BYTES};
use crate::wire::Header;

/// What was read and is not yet a message.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Grows to the longest message so far.
    bytes: Vec<u8>,
    /// Of these, what is not dealt with.
    start: usize,
    end: usize,
    /// Each with the end of the read that brought it.
    fds: Vec<(usize, OwnedFd)>,
}

/// A message; its payload stays in a buffer to be given back by [`Incoming::reuse`].
pub(crate) struct Message {
    pub header: Header,
    buffer: Vec<u8>,
    start: usize,
    pub fds: Vec<OwnedFd>,
}

impl Message {
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.start + Header::BYTES..self.start + self.header.size as usize]
    }
}

impl Incoming {
    /// Of the message that comes next, if so much of it is there.
    fn header(&self) -> Option<Header> {
        Header::decode(&self.bytes[self.start..self.end])
    }

    /// Where the next bytes belong; never empty. All messages that are whole have been taken.
    pub fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        for (end, _) in &mut self.fds {
            *end -= self.start;
        }
        self.end -= self.start;
        self.start = 0;
        let message = self.header().map_or(0, |header| header.size as usize);
        let len = message.max(READ_AHEAD_BYTES);
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// The first `count` bytes of the room are filled, and these descriptors came with them.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn received(&mut self, count: usize, fds: &mut Vec<OwnedFd>) -> Result<(), Violation> {
        self.end += count;
        self.fds.extend(fds.drain(..).map(|fd| (self.end, fd)));
        if self.fds.len() > MAX_FDS {
            return Err(Violation::TooManyFds { max: MAX_FDS });
        }
        Ok(())
    }

    /// Whether [`Incoming::next`] has something to say.
    pub fn is_ready(&self) -> bool {
        let there = self.end - self.start;
        self.header()
            .is_some_and(|header| header.size as usize <= there)
    }

    /// The next message that is whole.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn next(&mut self) -> Result<Option<Message>, Violation> {
        let Some(header) = self.header() else {
            return Ok(None);
        };
        if !(Header::SIZE..=MAX_MESSAGE_BYTES).contains(&header.size) {
            return Err(Violation::Size {
                size: header.size,
                min: Header::SIZE,
                max: MAX_MESSAGE_BYTES,
            });
        }
        let (start, end) = (self.start, self.start + header.size as usize);
        if end > self.end {
            return Ok(None);
        }
        self.start = end;
        // Those of messages before this one have been taken with them.
        let count = self.fds.partition_point(|(fds_end, _)| *fds_end <= end);
        let fds = self.fds.drain(..count).map(|(_, fd)| fd).collect();
        Ok(Some(Message {
            header,
            buffer: std::mem::take(&mut self.bytes),
            start,
            fds,
        }))
    }

    /// Takes the buffer of a message back that was dealt with.
    pub fn reuse(&mut self, message: Message) {
        self.bytes = message.buffer;
    }
}
