//! Adjacent requests of one batch become one.
//!
//! Requests of one direction are held back until the batch ends, the direction changes, or a flush
//! must come behind the writes before it; then they are sorted and neighbours are joined. Each
//! member gets its own used entry, and an error is every member's. Requests that overlap within a
//! batch have no order among them, which a disk with several requests in flight never promises.

use block::Op;

use crate::slots::{NONE, Slots};

/// How many requests become one at most.
pub const MAX_MERGED_REQUESTS: usize = 32;

/// How many bytes one merged request has at most: large enough for a disk's full speed; beyond, the
/// first bytes would only wait for the last.
const MAX_MERGED_BYTES: u64 = 1 << 20;

/// Requests that wait for neighbours.
pub(crate) struct MergeBuffer {
    op: Op,
    /// (offset, slot)
    waiting: [(u64, u32); MAX_MERGED_REQUESTS],
    count: usize,
}

impl MergeBuffer {
    pub fn new() -> Self {
        MergeBuffer {
            op: Op::Read,
            waiting: [(0, NONE); MAX_MERGED_REQUESTS],
            count: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether a request of this kind can wait with the others.
    pub fn takes(&self, op: Op) -> bool {
        self.count == 0 || (self.op == op && self.count < MAX_MERGED_REQUESTS)
    }

    /// Whether writes wait.
    pub fn holds_writes(&self) -> bool {
        self.count > 0 && self.op == Op::Write
    }

    pub fn push(&mut self, op: Op, offset: u64, slot: u32) {
        self.op = op;
        self.waiting[self.count] = (offset, slot);
        self.count += 1;
    }

    /// Empties the buffer: joins neighbours and gives each resulting request's first slot to `out`.
    pub fn drain(&mut self, slots: &mut Slots, mut out: impl FnMut(&mut Slots, Op, u32)) {
        let waiting = &mut self.waiting[..self.count];
        self.count = 0;
        waiting.sort_unstable_by_key(|(offset, _)| *offset);
        let mut leader = NONE;
        let mut last = NONE;
        for (_, slot) in waiting.iter().copied() {
            if leader != NONE && joins(slots, leader, slot) {
                slots.append_segments(leader, slot);
                slots.set_link(last, slot);
                let bytes = slots.get(slot).len;
                slots.get_mut(leader).len += bytes;
            } else {
                if leader != NONE {
                    out(slots, self.op, leader);
                }
                leader = slot;
            }
            last = slot;
        }
        if leader != NONE {
            out(slots, self.op, leader);
        }
    }
}

fn joins(slots: &Slots, leader: u32, next: u32) -> bool {
    let (a, b) = (slots.get(leader), slots.get(next));
    a.offset + a.len == b.offset
        && a.len + b.len <= MAX_MERGED_BYTES
        && slots.segment_count(leader) + slots.segment_count(next) <= slots.max_segments()
}
