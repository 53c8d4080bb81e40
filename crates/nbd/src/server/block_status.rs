//! Payloads of status chunks: ranges with their status, in the negotiated form.

use super::{ReplyStyle, Transmission};
use crate::wire::{BlockDescriptor, BlockDescriptorExt, BlockStatusExt};

/// Longest range of a descriptor with 32 bits: neighbours of one status stay aligned to 64 KiB.
const MAX_COMPACT_LEN: u64 = 0xffff_0000;

/// The ranges of one context, which follow each other from the offset of the request.
#[derive(Debug, Default)]
pub struct BlockStatusList {
    ranges: Vec<(u64, u32)>,
}

impl BlockStatusList {
    /// Appends a range. An empty one is left out; one of the same status as the last extends that.
    pub fn push(&mut self, len: u64, status: u32) {
        match self.ranges.last_mut() {
            _ if len == 0 => {}
            Some((last_len, last_status)) if *last_status == status => *last_len += len,
            _ => self.ranges.push((len, status)),
        }
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Appends the chunk with these ranges to `out`, as the reply to a request; `is_last` is set in the last chunk of the reply.
    /// There is at least one range. With `one`, the first range is enough.
    pub fn encode_chunk(
        &self,
        transmission: &Transmission,
        (cookie, offset): (u64, u64),
        context: u32,
        one: bool,
        is_last: bool,
        out: &mut Vec<u8>,
    ) {
        let shown = if one { 1 } else { self.ranges.len() };
        let mut descriptors = Vec::new();
        for &(len, status) in &self.ranges[..shown] {
            if transmission.style == ReplyStyle::Extended {
                let status = status.into();
                descriptors.extend_from_slice(
                    &BlockDescriptorExt {
                        length: len,
                        status,
                    }
                    .encode(),
                );
                continue;
            }
            let fits = len.min(MAX_COMPACT_LEN);
            #[allow(clippy::cast_possible_truncation, reason = "at most MAX_COMPACT_LEN")]
            let length = fits as u32;
            descriptors.extend_from_slice(&BlockDescriptor { length, status }.encode());
            if fits < len {
                // The client asks again from there.
                break;
            }
        }
        let begin = match transmission.style {
            ReplyStyle::Extended => {
                #[allow(clippy::cast_possible_truncation, reason = "at most 2^20 ranges")]
                let count = shown as u32;
                BlockStatusExt { context, count }.encode().to_vec()
            }
            _ => context.to_be_bytes().to_vec(),
        };
        #[allow(clippy::cast_possible_truncation, reason = "at most 2^24 bytes")]
        let payload = (begin.len() + descriptors.len()) as u32;
        let header = transmission.status_chunk(cookie, offset, payload, is_last);
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&begin);
        out.extend_from_slice(&descriptors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(style: ReplyStyle, list: &BlockStatusList, one: bool) -> Vec<u8> {
        let transmission = Transmission {
            style,
            flags: 0,
            min_block_size: 1,
            contexts: Vec::new(),
        };
        let mut out = Vec::new();
        list.encode_chunk(&transmission, (9, 512), 1, one, true, &mut out);
        out
    }

    #[test]
    fn ranges_of_one_status_are_one_descriptor() {
        let mut list = BlockStatusList::default();
        for (len, status) in [(512, 0), (0, 3), (512, 0), (4096, 3)] {
            list.push(len, status);
        }
        let expected = [
            &[
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 20,
            ][..],
            &[0, 0, 0, 1],
            &[0, 0, 4, 0, 0, 0, 0, 0],
            &[0, 0, 0x10, 0, 0, 0, 0, 3],
        ]
        .concat();
        assert_eq!(encode(ReplyStyle::Structured, &list, false), expected);
    }

    #[test]
    fn a_long_range_ends_a_compact_list_and_one_is_enough_if_the_client_says_so() {
        let mut list = BlockStatusList::default();
        list.push(1 << 40, 3);
        list.push(512, 0);
        let compact = encode(ReplyStyle::Structured, &list, false);
        assert_eq!(compact[24..], [0xff, 0xff, 0, 0, 0, 0, 0, 3]);
        let expected = [
            &[0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 9][..],
            &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 24],
            &[0, 0, 0, 1, 0, 0, 0, 1],
            &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3],
        ];
        assert_eq!(encode(ReplyStyle::Extended, &list, true), expected.concat());
    }
}
