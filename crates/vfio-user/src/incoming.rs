//! Bytes and descriptors become messages.
//!
//! Exactly the bytes of one message are asked for, first those of its header: then the descriptors that come
//! with them are that message's, however the sender has cut it.

use std::os::fd::OwnedFd;

use crate::error::Violation;
use crate::limits::{MAX_FDS, MAX_MESSAGE_BYTES};
use crate::wire::Header;

/// The message that is being read.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Grows to the longest message so far.
    bytes: Vec<u8>,
    filled: usize,
    fds: Vec<OwnedFd>,
}

/// A message; its payload stays in a buffer to be given back by [`Incoming::reuse`].
pub(crate) struct Message {
    pub header: Header,
    buffer: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Message {
    pub fn payload(&self) -> &[u8] {
        &self.buffer[Header::BYTES..self.header.size as usize]
    }
}

impl Incoming {
    fn header(&self) -> Option<Header> {
        (self.filled >= Header::BYTES).then(|| Header::decode(&self.bytes))?
    }

    /// Where the next bytes belong; never empty.
    pub fn wanted(&mut self) -> &mut [u8] {
        let end = self
            .header()
            .map_or(Header::BYTES, |header| header.size as usize);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.filled..end]
    }

    /// The first `count` bytes that were wanted are there, and these descriptors came with them.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn received(
        &mut self,
        count: usize,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<Option<Message>, Violation> {
        self.filled += count;
        self.fds.append(fds);
        if self.fds.len() > MAX_FDS {
            return Err(Violation::TooManyFds { max: MAX_FDS });
        }
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
        if self.filled < header.size as usize {
            return Ok(None);
        }
        self.filled = 0;
        Ok(Some(Message {
            header,
            buffer: std::mem::take(&mut self.bytes),
            fds: std::mem::take(&mut self.fds),
        }))
    }

    /// Takes the buffer of a message back that was dealt with.
    pub fn reuse(&mut self, message: Message) {
        self.bytes = message.buffer;
    }
}
