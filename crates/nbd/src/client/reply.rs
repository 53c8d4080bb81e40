//! Decodes replies of a server: the header of each, with the small payloads of chunks. Data of reads stays where it is.

use crate::wire::{
    EXTENDED_REPLY_MAGIC, ErrorPayload, ExtendedReply, HolePayload, MAX_STRING_BYTES, NbdErrno,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StructuredReply, chunk, reply_flag,
};

use super::handshake::ReplyStyle;

/// Most bytes of the payload of an error: a text, and what stands before and behind it.
const MAX_ERROR_BYTES: u64 = MAX_STRING_BYTES as u64 + 16;

/// The most bytes that [`Reply::parse`] needs to see.
pub(super) const MAX_REPLY_BYTES: usize = ExtendedReply::BYTES + MAX_STRING_BYTES as usize + 16;

/// A reply of a server that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("a reply begins with {0:#010x}")]
    Magic(u32),
    #[error("a chunk of unknown type {0}")]
    ChunkType(u16),
    #[error("a chunk of type {kind} with {length} bytes")]
    ChunkLength { kind: u16, length: u64 },
    #[error("an error of {0} bytes with a text of {1} bytes")]
    ErrorText(u64, u16),
    #[error("an empty chunk that is not the last")]
    EmptyChunk,
    #[error("a reply with cookie {0:#x}, which no request has that waits for one")]
    Cookie(u64),
    #[error("a simple reply to a read, where structured ones were agreed on")]
    SimpleReplyToRead,
    #[error("data for a request that is no read")]
    DataForOther,
    #[error("{len} bytes at {offset}, for a read of {wanted} bytes at {begin}")]
    DataOutside {
        offset: u64,
        len: u64,
        begin: u64,
        wanted: u64,
    },
    #[error("{found} bytes in several pieces for a read of {wanted} bytes")]
    DataTooLong { found: u64, wanted: u64 },
    #[error("{found} bytes, and the end, for a read of {wanted} bytes")]
    DataTooShort { found: u64, wanted: u64 },
}

/// The content of a reply or chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyContent {
    /// A simple reply: success. The data of a read follows.
    Success,
    /// A chunk without content.
    Nothing,
    /// So many bytes of data follow, for this offset of the export.
    Data { offset: u64, len: u64 },
    /// So many zeroes, at this offset.
    Hole { offset: u64, len: u64 },
    /// The request failed.
    Error(NbdErrno),
}

/// A simple reply, or a chunk of a structured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub cookie: u64,
    /// Nothing else follows for its request, apart from the data of this chunk.
    pub is_last: bool,
    pub content: ReplyContent,
}

impl Reply {
    /// Decodes the first reply in `bytes`, and returns how many bytes it has without data of reads; `None`: it is incomplete.
    pub fn parse(style: ReplyStyle, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Violation> {
        let Some(magic) = bytes.first_chunk().copied().map(u32::from_be_bytes) else {
            return Ok(None);
        };
        let chunk = match (style, magic) {
            (ReplyStyle::Simple | ReplyStyle::Structured, SIMPLE_REPLY_MAGIC) => {
                let simple = SimpleReply::decode_first(bytes).map(Reply::of_simple);
                return Ok(simple.map(|reply| (reply, SimpleReply::BYTES)));
            }
            (ReplyStyle::Structured, STRUCTURED_REPLY_MAGIC) => {
                StructuredReply::decode_first(bytes).map(|header| Chunk {
                    flags: header.flags,
                    kind: header.chunk,
                    cookie: header.cookie,
                    length: u64::from(header.length),
                    payload: &bytes[StructuredReply::BYTES..],
                    header_len: StructuredReply::BYTES,
                })
            }
            (ReplyStyle::Extended, EXTENDED_REPLY_MAGIC) => {
                ExtendedReply::decode_first(bytes).map(|header| Chunk {
                    flags: header.flags,
                    kind: header.chunk,
                    cookie: header.cookie,
                    length: header.length,
                    payload: &bytes[ExtendedReply::BYTES..],
                    header_len: ExtendedReply::BYTES,
                })
            }
            (_, magic) => return Err(Violation::Magic(magic)),
        };
        match chunk {
            Some(chunk) => chunk.parse(),
            None => Ok(None),
        }
    }

    fn of_simple(simple: SimpleReply) -> Reply {
        let content = match simple.error {
            0 => ReplyContent::Success,
            error => ReplyContent::Error(NbdErrno::from_wire(error)),
        };
        Reply {
            cookie: simple.cookie,
            is_last: true,
            content,
        }
    }
}

/// A chunk, before its payload is decoded.
struct Chunk<'a> {
    flags: u16,
    kind: u16,
    cookie: u64,
    length: u64,
    payload: &'a [u8],
    header_len: usize,
}

impl Chunk<'_> {
    fn parse(&self) -> Result<Option<(Reply, usize)>, Violation> {
        let is_last = self.flags & reply_flag::DONE != 0;
        let wrong_length = Violation::ChunkLength {
            kind: self.kind,
            length: self.length,
        };
        let (content, payload_len) = match self.kind {
            chunk::NONE if self.length != 0 => return Err(wrong_length),
            chunk::NONE if !is_last => return Err(Violation::EmptyChunk),
            chunk::NONE => (ReplyContent::Nothing, 0),
            chunk::OFFSET_DATA => {
                let len = self.length.checked_sub(8).filter(|len| *len > 0);
                let len = len.ok_or(wrong_length)?;
                let Some(offset) = self.payload.first_chunk() else {
                    return Ok(None);
                };
                let offset = u64::from_be_bytes(*offset);
                (ReplyContent::Data { offset, len }, 8)
            }
            chunk::OFFSET_HOLE => {
                if self.length != HolePayload::BYTES as u64 {
                    return Err(wrong_length);
                }
                let Some(hole) = HolePayload::decode_first(self.payload) else {
                    return Ok(None);
                };
                let (offset, len) = (hole.offset, u64::from(hole.length));
                (ReplyContent::Hole { offset, len }, HolePayload::BYTES)
            }
            kind if kind & chunk::IS_ERROR != 0 => {
                if !(ErrorPayload::BYTES as u64..=MAX_ERROR_BYTES).contains(&self.length) {
                    return Err(wrong_length);
                }
                // At most `MAX_ERROR_BYTES`.
                let length = usize::try_from(self.length).unwrap_or(usize::MAX);
                let Some(payload) = self.payload.get(..length) else {
                    return Ok(None);
                };
                let Some(error) = ErrorPayload::decode_first(payload) else {
                    return Err(wrong_length);
                };
                if usize::from(error.text_length) > length - ErrorPayload::BYTES {
                    return Err(Violation::ErrorText(self.length, error.text_length));
                }
                (
                    ReplyContent::Error(NbdErrno::from_wire(error.error)),
                    length,
                )
            }
            kind => return Err(Violation::ChunkType(kind)),
        };
        let reply = Reply {
            cookie: self.cookie,
            is_last,
            content,
        };
        Ok(Some((reply, self.header_len + payload_len)))
    }
}
