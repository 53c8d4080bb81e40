//! What is counted: commands that ask the disk, by what they ask first.

use block::{Op, Request};
use virtio_blk::Kind;

use super::Queue;
use crate::slots::Slot;

impl Queue {
    /// A command asks its disk for something.
    #[inline]
    pub(super) fn asks(&mut self, index: u32, request: &Request) {
        let kind = match request.op {
            Op::Read => Kind::Read,
            Op::Write | Op::WriteZeroes { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Unmap,
        };
        let slot = self.slots.get_mut(index);
        slot.kind.get_or_insert(kind);
        slot.bytes += request.len;
        if kind == Kind::Write {
            let end = request.offset + request.len;
            self.stats.highest_offset().raise(end);
        }
    }

    /// A command was carried out.
    #[inline]
    pub(super) fn count(&self, slot: &Slot) {
        let Some(kind) = slot.kind else {
            return;
        };
        let ticks = self.now.saturating_sub(slot.taken);
        let figures = self.stats.of(kind);
        figures.bytes.add(slot.bytes);
        figures.ticks.add(ticks);
        figures.latency.add(ticks, 1);
    }

    /// The disk has failed.
    #[cold]
    pub(super) fn failed(&self, index: u32) {
        if let Some(kind) = self.slots.get(index).kind {
            self.stats.of(kind).failed.add(1);
        }
    }

    /// What was completed so far is published, `now` in ticks.
    #[inline]
    pub fn end_batch(&mut self, now: u64) {
        self.stats.last_ticks().set(now);
        self.stats.in_flight().set(self.in_flight().into());
    }
}
