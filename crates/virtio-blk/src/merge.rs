//! Adjacent requests of one batch become one.
//!
//! Requests of one direction are held back until the batch ends, the direction changes, or a flush
//! must come behind the writes before it; then they are sorted and neighbours are joined. Each
//! member gets its own used entry, and an error is every member's. Requests that overlap within a
//! batch have no order among them, which a disk with several requests in flight never promises.

use block::{Op, SECTOR_BYTES};
use virtqueue::MAX_QUEUE_SIZE;

use crate::slots::{NONE, Slots};

/// How many requests can become one at most, whatever is asked for.
pub const MAX_MERGED_REQUESTS: usize = 64;

/// What becomes one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeLimits {
    /// How many requests, at most [`MAX_MERGED_REQUESTS`]; 0 or 1: each stays as it is.
    pub requests: usize,
    /// How many bytes the merged request has at most.
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

/// Bits of a packed limit that are its bytes: no disk is larger.
const BYTES_BITS: u32 = 56;
const BYTES_MASK: u64 = (1 << BYTES_BITS) - 1;

impl MergeLimits {
    /// Each request stays as it is.
    pub const OFF: MergeLimits = MergeLimits {
        requests: 1,
        bytes: 0,
    };

    /// In one word, so that queues never see the halves of two limits.
    pub(crate) fn pack(self) -> u64 {
        let requests = self.requests.min(MAX_MERGED_REQUESTS) as u64;
        requests << BYTES_BITS | self.bytes.min(BYTES_MASK)
    }

    #[inline]
    pub(crate) fn unpack(packed: u64) -> Self {
        MergeLimits {
            // At most `MAX_MERGED_REQUESTS`.
            requests: (packed >> BYTES_BITS) as usize,
            bytes: packed & BYTES_MASK,
        }
    }
}

/// Bits of a waiting request that name its slot.
const SLOT_BITS: u32 = MAX_QUEUE_SIZE.trailing_zeros();
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!(MAX_QUEUE_SIZE.is_power_of_two());

/// Requests that wait for neighbours.
pub(crate) struct MergeBuffer {
    limits: MergeLimits,
    op: Op,
    /// First sector, and slot in the lower bits: one number to sort by. (A disk beyond 2^63 bytes would
    /// lose upper bits of the sector here, and with them neighbours to join, nothing else.)
    waiting: [u64; MAX_MERGED_REQUESTS],
    count: usize,
    /// They came in the disk's order.
    sorted: bool,
}

impl MergeBuffer {
    /// For one batch.
    #[inline]
    pub fn new(limits: MergeLimits) -> Self {
        MergeBuffer {
            limits,
            op: Op::Read,
            waiting: [0; MAX_MERGED_REQUESTS],
            count: 0,
            sorted: true,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// What all that wait ask for.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Whether a request of this kind can wait with the others.
    #[inline]
    pub fn takes(&self, op: Op) -> bool {
        self.count == 0 || (self.op == op && self.count < MAX_MERGED_REQUESTS)
    }

    /// Whether writes wait.
    pub fn holds_writes(&self) -> bool {
        self.count > 0 && self.op == Op::Write
    }

    /// Adds a request that [is taken](Self::takes).
    #[inline]
    pub fn push(&mut self, op: Op, offset: u64, slot: u32) {
        let entry = (offset / SECTOR_BYTES) << SLOT_BITS | u64::from(slot);
        if self.count == 0 {
            self.op = op;
            self.sorted = true;
        } else {
            self.sorted &= self.waiting[self.count - 1] <= entry;
        }
        self.waiting[self.count] = entry;
        self.count += 1;
    }

    /// Empties the buffer: joins neighbours. Returns how many requests that makes, whose slots are [here](Self::joined).
    #[inline]
    pub fn join(&mut self, slots: &mut Slots) -> usize {
        let count = std::mem::take(&mut self.count);
        if self.limits.requests <= 1 {
            return count;
        }
        if !self.sorted {
            self.waiting[..count].sort_unstable();
        }
        let (mut joined, mut last) = (0, NONE);
        // Where the last of the requests ends, and its neighbour would begin; how many it was joined of.
        let (mut end, mut parts) = (0, 0);
        for index in 0..count {
            let slot = (self.waiting[index] & SLOT_MASK) as u32;
            let (offset, len) = {
                let slot = slots.get(slot);
                (slot.offset, slot.len)
            };
            let is_neighbour = joined > 0 && offset == end && parts < self.limits.requests;
            if is_neighbour && fits(self.limits, slots, self.joined(joined - 1), slot) {
                slots.join(self.joined(joined - 1), slot);
                slots.set_next(last, slot);
                parts += 1;
            } else {
                self.waiting[joined] = self.waiting[index];
                joined += 1;
                parts = 1;
            }
            end = offset + len;
            last = slot;
        }
        joined
    }

    /// The slot of a request that [was joined](Self::join) of neighbours, or had none.
    #[inline]
    pub fn joined(&self, index: usize) -> u32 {
        (self.waiting[index] & SLOT_MASK) as u32
    }
}

fn fits(limits: MergeLimits, slots: &Slots, leader: u32, next: u32) -> bool {
    slots.get(leader).len + slots.get(next).len <= limits.bytes
        && slots.segment_count(leader) + slots.segment_count(next) <= slots.max_segments()
}
