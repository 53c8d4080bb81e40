//! Merging of adjacent reads or writes of one batch, and the limits of a merged request.
//!
//! Requests of one direction are collected until the batch ends, the direction changes, or a flush
//! must come after the writes before it; then they are sorted and adjacent ones are merged. Each
//! member gets its own used entry, and an error fails every member. Requests that overlap within a
//! batch have no order among them, which a disk with several requests in flight never promises.

use block::{Op, SECTOR_BYTES};
use virtqueue::MAX_QUEUE_SIZE;

use crate::slots::{NO_SLOT, Slots};

/// Upper bound of the number of requests that are merged into one.
pub const MAX_MERGED_REQUESTS: usize = 64;

/// Limits of a merged request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeLimits {
    /// Number of requests, at most [`MAX_MERGED_REQUESTS`]; 0 or 1: no merging.
    pub requests: usize,
    /// Number of bytes.
    pub bytes: u64,
}

impl Default for MergeLimits {
    fn default() -> Self {
        MergeLimits {
            requests: 32,
            // Large enough for a disk's full speed; beyond, the first bytes would only wait for the
            // last.
            bytes: 1 << 20,
        }
    }
}

/// Bits for the bytes in a packed limit: no disk is larger.
const BYTES_BITS: u32 = 56;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

impl MergeLimits {
    /// No merging.
    pub const OFF: MergeLimits = MergeLimits {
        requests: 1,
        bytes: 0,
    };

    /// Packs both limits into one word, so that queues never see the halves of two limits.
    pub(crate) fn pack(self) -> u64 {
        let requests = self.requests.min(MAX_MERGED_REQUESTS) as u64;
        requests << BYTES_BITS | self.bytes.min(BYTES_MASK)
    }

    /// The limits in a word from [`MergeLimits::pack`].
    #[inline]
    pub(crate) fn unpack(packed: u64) -> Self {
        MergeLimits {
            // At most `MAX_MERGED_REQUESTS`.
            requests: (packed >> BYTES_BITS) as usize,
            bytes: packed & BYTES_MASK,
        }
    }
}

/// Bits for the slot in the sort key of a collected request.
const SLOT_BITS: u32 = MAX_QUEUE_SIZE.trailing_zeros();
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!(MAX_QUEUE_SIZE.is_power_of_two());

/// Collected requests that may be merged.
pub(crate) struct MergeBuffer {
    limits: MergeLimits,
    op: Op,
    /// Sort keys: first sector, and slot in the lower bits. (A disk beyond 2^63 bytes would
    /// lose upper bits of the sector here, and so merge fewer requests, nothing else.)
    collected: [u64; MAX_MERGED_REQUESTS],
    count: usize,
    /// Whether they came in the disk's order.
    sorted: bool,
}

impl MergeBuffer {
    /// An empty buffer for one batch.
    #[inline]
    pub fn new(limits: MergeLimits) -> Self {
        MergeBuffer {
            limits,
            op: Op::Read,
            collected: [0; MAX_MERGED_REQUESTS],
            count: 0,
            sorted: true,
        }
    }

    /// Number of collected requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The operation of the collected requests.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Whether a request of this operation can be collected with the others.
    #[inline]
    pub fn accepts(&self, op: Op) -> bool {
        self.count == 0 || (self.op == op && self.count < MAX_MERGED_REQUESTS)
    }

    /// Whether writes are collected.
    pub fn has_writes(&self) -> bool {
        self.count > 0 && self.op == Op::Write
    }

    /// Adds a request that [is accepted](Self::accepts).
    #[inline]
    pub fn push(&mut self, op: Op, offset: u64, slot: u32) {
        let entry = (offset / SECTOR_BYTES) << SLOT_BITS | u64::from(slot);
        if self.count == 0 {
            self.op = op;
            self.sorted = true;
        } else {
            self.sorted &= self.collected[self.count - 1] <= entry;
        }
        self.collected[self.count] = entry;
        self.count += 1;
    }

    /// Merges adjacent requests and empties the buffer. Returns the number of resulting requests, whose slots are
    /// [here](Self::slot_of_merged_request).
    #[inline]
    pub fn merge_adjacent(&mut self, slots: &mut Slots) -> usize {
        let count = std::mem::take(&mut self.count);
        if self.limits.requests <= 1 {
            return count;
        }
        if !self.sorted {
            self.collected[..count].sort_unstable();
        }
        let (mut merged, mut last) = (0, NO_SLOT);
        // Where the last of the requests ends, and an adjacent one would begin; how many were merged into it.
        let (mut end, mut parts) = (0, 0);
        for index in 0..count {
            let slot = (self.collected[index] & SLOT_MASK) as u32;
            let (offset, len) = {
                let slot = slots.get(slot);
                (slot.offset, slot.len)
            };
            let is_adjacent = merged > 0 && offset == end && parts < self.limits.requests;
            if is_adjacent
                && fits_merge_limits(
                    self.limits,
                    slots,
                    self.slot_of_merged_request(merged - 1),
                    slot,
                )
            {
                slots.append_segments_to_leader(self.slot_of_merged_request(merged - 1), slot);
                slots.set_next_merged(last, slot);
                parts += 1;
            } else {
                self.collected[merged] = self.collected[index];
                merged += 1;
                parts = 1;
            }
            end = offset + len;
            last = slot;
        }
        merged
    }

    /// The slot of a request that results from [merging](Self::merge_adjacent).
    #[inline]
    pub fn slot_of_merged_request(&self, index: usize) -> u32 {
        (self.collected[index] & SLOT_MASK) as u32
    }
}

/// Whether `next` can be merged into the request of `leader` without exceeding bytes or segments.
fn fits_merge_limits(limits: MergeLimits, slots: &Slots, leader: u32, next: u32) -> bool {
    slots.get(leader).len + slots.get(next).len <= limits.bytes
        && slots.segment_count(leader) + slots.segment_count(next) <= slots.max_segments()
}
