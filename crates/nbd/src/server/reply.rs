//! Headers of replies in each form. The data follows from where it is, so that it is not copied.

use super::{ReplyStyle, Transmission};
use crate::wire::{
    EXTENDED_REPLY_MAGIC, ErrorPayload, ExtendedReply, NbdErrno, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply, chunk, reply_flag,
};

/// Most bytes of a header: an extended one, and the fixed part of a payload.
const MAX_BYTES: usize = ExtendedReply::BYTES + 8;

/// The bytes of a reply before its data or text.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; MAX_BYTES],
    len: u8,
}

impl Default for ReplyHeader {
    fn default() -> Self {
        ReplyHeader {
            bytes: [0; MAX_BYTES],
            len: 0,
        }
    }
}

impl ReplyHeader {
    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    #[inline]
    fn append<const N: usize>(&mut self, bytes: [u8; N]) {
        let begin = usize::from(self.len);
        self.bytes[begin..begin + N].copy_from_slice(&bytes);
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_BYTES")]
        let added = N as u8;
        self.len += added;
    }
}

/// The request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answered {
    cookie: u64,
    offset: u64,
}

impl Transmission {
    /// The reply to a successful request without data.
    #[inline]
    #[must_use]
    pub fn success_reply(&self, cookie: u64, offset: u64) -> ReplyHeader {
        match self.style {
            ReplyStyle::Simple => simple_reply(cookie, 0),
            _ => self.chunk(
                Answered { cookie, offset },
                reply_flag::DONE,
                chunk::NONE,
                0,
            ),
        }
    }

    /// The reply to a successful read; the data follows.
    #[inline]
    #[must_use]
    pub fn read_reply(&self, cookie: u64, offset: u64, len: u32) -> ReplyHeader {
        match self.style {
            ReplyStyle::Simple => simple_reply(cookie, 0),
            // A chunk of data has at least one byte.
            _ if len == 0 => self.success_reply(cookie, offset),
            _ => {
                let answered = Answered { cookie, offset };
                let length = len + 8;
                let mut reply = self.chunk(answered, reply_flag::DONE, chunk::OFFSET_DATA, length);
                reply.append(offset.to_be_bytes());
                reply
            }
        }
    }

    /// The reply to a failed request. In the forms other than the simple one, the text follows: at most 4096 bytes.
    #[must_use]
    pub fn error_reply(
        &self,
        cookie: u64,
        offset: u64,
        errno: NbdErrno,
        text: &str,
    ) -> ReplyHeader {
        if self.style == ReplyStyle::Simple {
            return simple_reply(cookie, errno.to_wire());
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most 4096 bytes")]
        let text_length = text.len() as u16;
        let answered = Answered { cookie, offset };
        let length = 6 + u32::from(text_length);
        let mut reply = self.chunk(answered, reply_flag::DONE, chunk::ERROR, length);
        let error = errno.to_wire();
        reply.append(ErrorPayload { error, text_length }.encode());
        reply
    }

    /// Whether the text follows an error.
    #[must_use]
    pub fn has_error_texts(&self) -> bool {
        self.style != ReplyStyle::Simple
    }

    /// The header of a chunk.
    #[inline]
    fn chunk(&self, answered: Answered, flags: u16, chunk: u16, length: u32) -> ReplyHeader {
        let mut reply = ReplyHeader::default();
        let Answered { cookie, offset } = answered;
        if self.style == ReplyStyle::Extended {
            let header = ExtendedReply {
                magic: EXTENDED_REPLY_MAGIC,
                flags,
                chunk,
                cookie,
                offset,
                length: length.into(),
            };
            reply.append(header.encode());
        } else {
            let header = StructuredReply {
                magic: STRUCTURED_REPLY_MAGIC,
                flags,
                chunk,
                cookie,
                length,
            };
            reply.append(header.encode());
        }
        reply
    }

    /// The header of a status chunk whose payload has so many bytes; the payload follows.
    pub(super) fn status_chunk(
        &self,
        cookie: u64,
        offset: u64,
        payload: u32,
        is_last: bool,
    ) -> ReplyHeader {
        let flags = if is_last { reply_flag::DONE } else { 0 };
        let kind = match self.style {
            ReplyStyle::Extended => chunk::BLOCK_STATUS_EXT,
            _ => chunk::BLOCK_STATUS,
        };
        self.chunk(Answered { cookie, offset }, flags, kind, payload)
    }
}

/// A simple reply with this error.
#[inline]
fn simple_reply(cookie: u64, error: u32) -> ReplyHeader {
    let mut reply = ReplyHeader::default();
    let header = SimpleReply {
        magic: SIMPLE_REPLY_MAGIC,
        error,
        cookie,
    };
    reply.append(header.encode());
    reply
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
