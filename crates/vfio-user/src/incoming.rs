//! Received bytes and descriptors, split into messages.
//!
//! A read takes all that the socket has: a guest writes doorbells faster than they are handled, and a system call takes longer
//! than handling one. Descriptors still belong to one message: the kernel ends a read with the bytes that descriptors were
//! sent with (unix(7)), so they belong to the message that has the last byte of that read, wherever the sender has split
//! the stream. If several messages and descriptors are sent in one call, the last message gets the descriptors.

use std::os::fd::OwnedFd;

use crate::error::ProtocolViolation;
use crate::limits::{MAX_FDS, MAX_MESSAGE_BYTES, READ_AHEAD_BYTES};
use crate::wire::Header;

/// A buffer of received bytes and descriptors that were not returned as messages yet.
#[derive(Default)]
pub(crate) struct IncomingBuffer {
    /// Grows to the longest message so far.
    bytes: Vec<u8>,
    /// The unread part of the bytes.
    start: usize,
    end: usize,
    /// Each with the end of the read that brought it.
    fds: Vec<(usize, OwnedFd)>,
}

/// A message; [`IncomingBuffer::recycle_buffer_of`] returns its buffer.
pub(crate) struct IncomingMessage {
    pub header: Header,
    buffer: Vec<u8>,
    start: usize,
    pub fds: Vec<OwnedFd>,
}

impl IncomingMessage {
    /// The bytes after the header.
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.start + Header::BYTES..self.start + self.header.size as usize]
    }
}

impl IncomingBuffer {
    /// The header of the next message, if all of it was received. Its size is within the limits.
    fn peek_next_header(&self) -> Result<Option<Header>, ProtocolViolation> {
        let header = Header::decode(&self.bytes[self.start..self.end]);
        match header {
            Some(Header { size, .. }) if !(Header::SIZE..=MAX_MESSAGE_BYTES).contains(&size) => {
                Err(ProtocolViolation::Size {
                    size,
                    min: Header::SIZE,
                    max: MAX_MESSAGE_BYTES,
                })
            }
            header => Ok(header),
        }
    }

    /// The buffer for the next read; never empty. All complete messages must have been taken.
    pub fn compact_and_get_read_buffer(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        for (end, _) in &mut self.fds {
            *end -= self.start;
        }
        self.end -= self.start;
        self.start = 0;
        let next = self.peek_next_header().unwrap_or_default();
        let message = next.map_or(0, |header| header.size as usize);
        let len = message.max(READ_AHEAD_BYTES);
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Adds the first `count` bytes of the room and the descriptors that came with them.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn add_received(
        &mut self,
        count: usize,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(), ProtocolViolation> {
        self.end += count;
        self.fds.extend(fds.drain(..).map(|fd| (self.end, fd)));
        if self.fds.len() > MAX_FDS {
            return Err(ProtocolViolation::TooManyFds { max: MAX_FDS });
        }
        Ok(())
    }

    /// Whether [`IncomingBuffer::take_next_message`] has a message, or an error.
    pub fn has_message(&self) -> bool {
        let received = self.end - self.start;
        match self.peek_next_header() {
            Ok(Some(header)) => header.size as usize <= received,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// The next complete message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn take_next_message(&mut self) -> Result<Option<IncomingMessage>, ProtocolViolation> {
        let Some(header) = self.peek_next_header()? else {
            return Ok(None);
        };
        let (start, end) = (self.start, self.start + header.size as usize);
        if end > self.end {
            return Ok(None);
        }
        self.start = end;
        // Descriptors of previous messages have been taken with those.
        let count = self.fds.partition_point(|(fds_end, _)| *fds_end <= end);
        let fds = self.fds.drain(..count).map(|(_, fd)| fd).collect();
        Ok(Some(IncomingMessage {
            header,
            buffer: std::mem::take(&mut self.bytes),
            start,
            fds,
        }))
    }

    /// Reuses the buffer of a message that was handled.
    pub fn recycle_buffer_of(&mut self, message: IncomingMessage) {
        self.bytes = message.buffer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also when it is read before the messages in front of it were handled.
    #[test]
    fn a_header_that_claims_too_much_is_an_error_and_takes_no_memory() {
        for size in [0, Header::SIZE - 1, MAX_MESSAGE_BYTES + 1, u32::MAX] {
            let mut incoming = IncomingBuffer::default();
            let header = Header {
                size,
                ..Header::default()
            };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            incoming.compact_and_get_read_buffer()[..bytes.len()].copy_from_slice(&bytes);
            incoming.add_received(bytes.len(), &mut Vec::new()).unwrap();
            assert!(incoming.has_message(), "{size}");
            let room = incoming.compact_and_get_read_buffer().len();
            assert_eq!(room, READ_AHEAD_BYTES - bytes.len(), "{size}");
            assert!(incoming.take_next_message().is_err(), "{size}");
        }
    }
}
