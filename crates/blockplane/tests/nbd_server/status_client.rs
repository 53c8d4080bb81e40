//! A client that chooses metadata contexts and queries the block status, with structured replies or extended headers.

use std::io::Read;

use nbd::wire::{
    BlockDescriptor, BlockDescriptorExt, BlockStatusExt, EXTENDED_REQUEST_MAGIC, ErrorPayload,
    ExtendedReply, ExtendedRequest, StructuredReply, chunk, command, option, option_reply,
    reply_flag,
};

use crate::process::Folder;
use crate::raw_client::{RawClient, request, string};

/// The ranges of a context, each with its length and status.
pub type Ranges = Vec<(u64, u64)>;

/// A client that has entered an export.
pub struct StatusClient {
    pub raw: RawClient,
    extended: bool,
    /// The contexts that the server has set, with their numbers.
    pub contexts: Vec<(u32, String)>,
}

/// A client in the handshake, with one of these forms of replies.
fn negotiating(folder: &Folder, extended: bool) -> RawClient {
    let mut raw = RawClient::connect(folder);
    raw.greet().unwrap();
    let style = match extended {
        true => option::EXTENDED_HEADERS,
        false => option::STRUCTURED_REPLY,
    };
    let replies = raw.option(style, &[]).unwrap();
    assert_eq!(replies, [(option_reply::ACK, vec![])]);
    raw
}

/// Sets the contexts that these queries name, and returns those of the replies.
fn set_contexts(raw: &mut RawClient, export: &str, queries: &[&str]) -> Vec<(u32, String)> {
    let mut data = string(export);
    data.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    let mut replies = raw.option(option::SET_META_CONTEXT, &data).unwrap();
    assert_eq!(replies.pop().unwrap().0, option_reply::ACK);
    let contexts = replies.into_iter().map(|(kind, data)| {
        assert_eq!(kind, option_reply::META_CONTEXT);
        let (number, name) = data.split_first_chunk().unwrap();
        let name = String::from_utf8(name.to_vec()).unwrap();
        (u32::from_be_bytes(*number), name)
    });
    contexts.collect()
}

impl StatusClient {
    /// Sets the contexts that these queries name, and enters the export.
    pub fn enter(folder: &Folder, export: &str, extended: bool, queries: &[&str]) -> Self {
        Self::enter_after(folder, export, extended, queries, || {})
    }

    /// The same; the contexts are set before this happens.
    pub fn enter_after(
        folder: &Folder,
        export: &str,
        extended: bool,
        queries: &[&str],
        happens: impl FnOnce(),
    ) -> Self {
        let mut raw = negotiating(folder, extended);
        let contexts = set_contexts(&mut raw, export, queries);
        happens();
        let go = [&string(export)[..], &[0, 0]].concat();
        let replies = raw.option(option::GO, &go).unwrap();
        assert_eq!(replies.last().unwrap().0, option_reply::ACK);
        StatusClient {
            raw,
            extended,
            contexts,
        }
    }

    /// Queries the status of a range: the ranges of each context by its name, or the error.
    pub fn status(&mut self, flags: u16, range: (u64, u64)) -> Result<Vec<(String, Ranges)>, u32> {
        let (offset, length) = range;
        let short = (offset, u32::try_from(length).unwrap());
        let request = match self.extended {
            false => request(command::BLOCK_STATUS, flags, 7, short),
            true => ExtendedRequest {
                magic: EXTENDED_REQUEST_MAGIC,
                flags,
                command: command::BLOCK_STATUS,
                cookie: 7,
                offset,
                length,
            }
            .encode()
            .to_vec(),
        };
        self.raw.send(&request);
        let mut found = Vec::new();
        loop {
            let (kind, is_last, payload) = self.chunk();
            if kind & chunk::IS_ERROR != 0 {
                return Err(ErrorPayload::decode_first(&payload).unwrap().error);
            }
            let (number, ranges) = ranges(kind, &payload);
            let mut contexts = self.contexts.iter();
            let context = contexts.find(|(known, _)| *known == number);
            found.push((context.unwrap().1.clone(), ranges));
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Queries the status of a range many times at once, and reads all replies.
    pub fn pipeline(&mut self, queries: usize, range: (u64, u32)) {
        assert!(!self.extended);
        let query = request(command::BLOCK_STATUS, 0, 7, range);
        self.raw.send(&query.repeat(queries));
        for _ in 0..queries {
            while !self.chunk().1 {}
        }
    }

    /// The next chunk: its kind, whether it is the last one, and its payload.
    fn chunk(&mut self) -> (u16, bool, Vec<u8>) {
        let (flags, kind, length) = if self.extended {
            let mut header = [0; ExtendedReply::BYTES];
            self.raw.stream.read_exact(&mut header).unwrap();
            let header = ExtendedReply::decode(&header);
            assert_eq!(header.cookie, 7);
            (header.flags, header.chunk, header.length)
        } else {
            let mut header = [0; StructuredReply::BYTES];
            self.raw.stream.read_exact(&mut header).unwrap();
            let header = StructuredReply::decode(&header);
            assert_eq!(header.cookie, 7);
            (header.flags, header.chunk, header.length.into())
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.raw.stream.read_exact(&mut payload).unwrap();
        (kind, flags & reply_flag::DONE != 0, payload)
    }
}

/// The context and the ranges of a status chunk.
fn ranges(kind: u16, payload: &[u8]) -> (u32, Ranges) {
    if kind == chunk::BLOCK_STATUS_EXT {
        let begin = BlockStatusExt::decode_first(payload).unwrap();
        let pieces = payload[BlockStatusExt::BYTES..].chunks(BlockDescriptorExt::BYTES);
        let pieces = pieces.map(|piece| BlockDescriptorExt::decode_first(piece).unwrap());
        let ranges: Ranges = pieces.map(|piece| (piece.length, piece.status)).collect();
        assert_eq!(ranges.len(), begin.count as usize);
        return (begin.context, ranges);
    }
    assert_eq!(kind, chunk::BLOCK_STATUS);
    let (context, pieces) = payload.split_first_chunk().unwrap();
    let pieces = pieces.chunks(BlockDescriptor::BYTES);
    let pieces = pieces.map(|piece| BlockDescriptor::decode_first(piece).unwrap());
    let ranges = pieces.map(|piece| (piece.length.into(), piece.status.into()));
    (u32::from_be_bytes(*context), ranges.collect())
}
