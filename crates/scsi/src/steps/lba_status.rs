//! GET LBA STATUS: queries, on a thread that may block, which parts of the node are allocated, and encodes the reply.

use std::sync::{Arc, Mutex, PoisonError};

use block::{Allocation, AllocationQuery, DiskCall};

use super::{Extent, NextStep, StepContext};
use crate::bytes::{put_bytes, saturated_u32};

const HEADER_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 16;

/// Most descriptors of one reply: an initiator continues where it ends.
const MAX_DESCRIPTORS: usize = 64;

/// PROVISIONING STATUS.
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

pub(crate) struct GetLbaStatus {
    first: u64,
    block_shift: u32,
    allocation_len: usize,
    query: AllocationQuery,
    queried: bool,
}

impl GetLbaStatus {
    /// The status from block `first` on, with which the extent begins, in at most `allocation_len` bytes.
    pub fn new(first: u64, block_shift: u32, extent: Extent, allocation_len: u64) -> Self {
        let allocation_len = usize::try_from(allocation_len).unwrap_or(usize::MAX);
        let room = allocation_len.saturating_sub(HEADER_BYTES) / DESCRIPTOR_BYTES;
        GetLbaStatus {
            first,
            block_shift,
            allocation_len,
            query: AllocationQuery {
                offset: extent.offset,
                len: extent.len,
                // An allocation that begins or ends within a block may yield no descriptor.
                most: 2 * room.clamp(1, MAX_DESCRIPTORS),
                found: Arc::new(Mutex::default()),
            },
            queried: false,
        }
    }

    /// Reports all blocks as mapped, without a query.
    pub fn skip_query(&mut self) {
        self.queried = true;
    }

    /// Most bytes of the reply.
    pub fn max_reply_bytes(&self) -> u64 {
        let most = HEADER_BYTES + MAX_DESCRIPTORS * DESCRIPTOR_BYTES;
        self.allocation_len.min(most) as u64
    }

    pub fn requested_disk_call(&self) -> DiskCall {
        DiskCall::Allocations(self.query.clone())
    }

    /// Queries the allocations, and copies the reply to the initiator.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        if !std::mem::replace(&mut self.queried, true) {
            return NextStep::Call;
        }
        let found = self
            .query
            .found
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let answer = self.encode_reply(&found);
        drop(found);
        let len = answer.len().min(self.allocation_len);
        NextStep::FinishedWithBytes(io.segments.copy_from_slice(0, &answer[..len]) as u64)
    }

    /// The reply: a descriptor for each run of blocks.
    fn encode_reply(&self, found: &[Allocation]) -> Vec<u8> {
        let room = self.query.most / 2;
        let mut answer = vec![0; HEADER_BYTES];
        for (lba, blocks, status) in self.block_runs(found).into_iter().take(room) {
            let mut descriptor = [0; DESCRIPTOR_BYTES];
            put_bytes(&mut descriptor, 0, &lba.to_be_bytes());
            put_bytes(&mut descriptor, 8, &saturated_u32(blocks).to_be_bytes());
            descriptor[12] = status;
            answer.extend(descriptor);
            if blocks > u64::from(u32::MAX) {
                // The field is too small: an initiator continues where the descriptor ends.
                break;
            }
        }
        let len = saturated_u32(answer.len() as u64 - 4);
        put_bytes(&mut answer, 0, &len.to_be_bytes());
        answer
    }

    /// First block, number of blocks and status of each run of equal blocks. A block is deallocated if all of it is.
    fn block_runs(&self, found: &[Allocation]) -> Vec<(u64, u64, u8)> {
        let mut runs: Vec<(u64, u64, u8)> = Vec::new();
        let mut add = |lba: u64, end: u64, status: u8| match runs.last_mut() {
            _ if end <= lba => {}
            Some((_, blocks, last)) if *last == status => *blocks += end - lba,
            _ => runs.push((lba, end - lba, status)),
        };
        let (mut bytes, mut next) = (0, self.first);
        for piece in found {
            let start = bytes;
            bytes += piece.len;
            if piece.allocated {
                continue;
            }
            let block = 1 << self.block_shift;
            let begins = self.first + (start.next_multiple_of(block) >> self.block_shift);
            let ends = self.first + (bytes >> self.block_shift);
            if begins < ends {
                add(next, begins, MAPPED);
                add(begins, ends, DEALLOCATED);
                next = ends;
            }
        }
        let block = 1u64 << self.block_shift;
        let end = self.first + (bytes.next_multiple_of(block) >> self.block_shift);
        add(next, end, MAPPED);
        if runs.is_empty() {
            let blocks = self.query.len >> self.block_shift;
            runs.push((self.first, blocks, MAPPED));
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn runs(pieces: &[(u64, bool)]) -> Vec<(u64, u64, u8)> {
        let extent = Extent {
            offset: 0,
            len: 64 * KIB,
        };
        let found: Vec<_> = pieces
            .iter()
            .map(|(len, allocated)| Allocation {
                len: *len,
                allocated: *allocated,
            })
            .collect();
        GetLbaStatus::new(100, 12, extent, 1000).block_runs(&found)
    }

    #[test]
    fn a_block_is_deallocated_if_all_of_it_is() {
        assert_eq!(runs(&[(64 * KIB, true)]), [(100, 16, 0)]);
        assert_eq!(runs(&[(64 * KIB, false)]), [(100, 16, 1)]);
        let halves = [(8 * KIB, false), (8 * KIB, true), (48 * KIB, false)];
        assert_eq!(runs(&halves), [(100, 2, 1), (102, 2, 0), (104, 12, 1)]);
        let within = [(5 * KIB, false), (2 * KIB, true), (57 * KIB, false)];
        assert_eq!(runs(&within), [(100, 1, 1), (101, 1, 0), (102, 14, 1)]);
        let small = [(4 * KIB, true), (2 * KIB, false), (58 * KIB, true)];
        assert_eq!(runs(&small), [(100, 16, 0)], "a hole within a block");
        let cut = [(5 * KIB, true), (3 * KIB, false)];
        assert_eq!(runs(&cut), [(100, 2, 0)], "the rest was not queried");
        assert_eq!(runs(&[]), [(100, 16, 0)], "unknown");
    }
}
