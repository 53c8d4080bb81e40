//! A queue's functions that retry, answer or release parked requests: block requests that the disk has failed and that are not
//! answered yet. They keep their slots until then; the list of them is the caller's.

use block::{DiskIo, Op};
use telemetry::queue::RequestKind;
use virtqueue::ChainId;

use super::{DISK, Queue};
use crate::slots::NO_SLOT;
use crate::wire::Status;

/// Result of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOutcome {
    /// It was submitted.
    Submitted,
    /// It was not: it lies beyond the end of the disk, which has become smaller.
    BeyondEnd,
}

impl Queue {
    /// The slots of the guest's requests that were merged into this block request, its own first.
    pub fn merged_slots(&self, slot: u32) -> impl Iterator<Item = u32> {
        let mut next = slot;
        std::iter::from_fn(move || {
            let slot = (next != NO_SLOT).then_some(next)?;
            next = self.slots.next_merged(slot);
            Some(slot)
        })
    }

    /// The chain of a request.
    #[must_use]
    pub fn slot_chain_id(&self, slot: u32) -> ChainId {
        self.slots.get(slot).id
    }

    /// Slots of block requests in flight that were admitted before the current generation.
    pub fn slots_of_older_generations(&self) -> impl Iterator<Item = u32> {
        let slots = self.slots.in_flight_slots();
        slots.filter(|slot| self.is_old(*slot))
    }

    /// Whether it was admitted before the current generation.
    #[must_use]
    pub fn is_old(&self, slot: u32) -> bool {
        self.slots.get(slot).admitted < self.generation_start
    }

    /// Answers a block request that the disk has failed, and all that was merged into it, as failed.
    pub fn answer_as_failed(&mut self, ring: &mut virtqueue::Queue, slot: u32, now: u64) {
        self.answer_merged(ring, slot, Status::IoErr, now);
        self.has_unpublished = true;
    }

    /// Submits the rest of a failed block request, which the disk has not transferred. There is room.
    pub fn retry_unless_beyond_end(&mut self, slot: u32, io: &mut impl DiskIo) -> RetryOutcome {
        let op = self.slot_op(slot);
        let mut request = self.build_block_request(op, slot);
        let end = request.offset.saturating_add(request.len);
        if end > self.device.capacity_bytes() && op != Op::Flush {
            return RetryOutcome::BeyondEnd;
        }
        if matches!(op, Op::Read | Op::Write) {
            // The segments before these were transferred.
            let (_, len, iov) = self.slots.range_and_segments(slot);
            request.len = iov.iter().map(|segment| segment.iov_len as u64).sum();
            request.offset += len - request.len;
        }
        // SAFETY: the segments are checked guest memory, held until the request is finished, which it is not
        // yet; the list lies in the slot, which is not released before `complete_block_requests`.
        unsafe { io.submit(DISK, request) };
        RetryOutcome::Submitted
    }

    /// The operation of a block request, from the kind that it counts as and whether it has data.
    fn slot_op(&self, slot: u32) -> Op {
        let data = self.slots.segment_count(slot) > 0;
        let slot = self.slots.get(slot);
        match slot.admitted.kind() {
            RequestKind::Read => Op::Read,
            RequestKind::Write if data => Op::Write,
            RequestKind::Write => Op::WriteZeroes {
                unmap: slot.may_unmap(),
            },
            RequestKind::Flush => Op::Flush,
            RequestKind::Unmap => Op::Discard,
        }
    }

    /// Releases a failed block request that is not answered: its chains were returned to the ring, or stay in the in-flight region.
    pub fn release_unanswered(&mut self, slot: u32) {
        let admitted = self.slots.get(slot).admitted;
        let (mut next, mut requests) = (slot, 0);
        while next != NO_SLOT {
            next = self.slots.release(next).next;
            requests += 1;
        }
        self.record_finished_if_of_older_generation(admitted, requests);
        self.record_batch_statistics();
    }

    /// The number of unfinished requests that were admitted from `after` to `until` (in [ticks](telemetry::counters::TickClock)), and the
    /// admit time of the oldest of them, without those for which `waits` is true.
    #[must_use]
    pub fn count_and_oldest_admitted_between(
        &self,
        after: u64,
        until: u64,
        waits: impl Fn(u32) -> bool,
    ) -> (u32, u64) {
        let (mut count, mut oldest) = (0, u64::MAX);
        for slot in self.slots.in_flight_slots() {
            let ticks = self.slots.get(slot).admitted.ticks();
            if (after..until).contains(&ticks) && !waits(slot) {
                count += 1;
                oldest = oldest.min(ticks);
            }
        }
        (count, oldest)
    }
}
