//! One queue of the device: chains in, block requests out; completions in, used entries out.

mod retry;

use std::sync::Arc;

use block::{Op, Request};
use libc::iovec;
use virtqueue::planted::{Mistake, is_planted};
use virtqueue::{Chain, ChainId, GuestMemory, RingError};

use crate::device::{Device, SERIAL_BYTES};
use crate::merge::MergeBuffer;
use crate::name::QueueName;
use crate::parse::{Checks, Frame, Parsed, Reply, RequestError, copy_to, without_header};
use crate::probes;
use crate::slots::{self, NONE, Slots};
use crate::stats::{Group, Kind, Moment, QueueStats, Stamp};
use crate::wire::{HEADER_BYTES, Status, T_BARRIER, T_IN, T_OUT};

pub use retry::Retried;

/// Segments that a request may have beyond those that we announce: a buffer across the border of two
/// memory regions is one descriptor of the guest's and two segments of ours. Few requests meet one
/// border, hardly any meets more.
const BORDER_SEGMENTS: u32 = 8;

/// Where block requests go.
pub trait Sink {
    /// How many requests are taken for sure.
    fn room(&self) -> usize;

    /// Whether one request costs it less than two for neighbours.
    fn merging_helps(&self) -> bool {
        true
    }

    /// Takes a request; there was room.
    ///
    /// # Safety
    /// The request's segments are valid, and stay so until [`Queue::complete`] was called with
    /// the slot in its token.
    unsafe fn submit(&mut self, request: Request);
}

/// How an admission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The ring is empty.
    Drained,
    /// The budget is used up and there may be more.
    Budget,
    /// The sink is full: come again after a completion.
    Stalled,
}

/// The guest broke the queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The ring itself.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// What stood in it.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// What a completion finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Requests of the guest.
    pub requests: u32,
    /// When they were taken off the ring.
    pub taken: Stamp,
}

/// The requests of one virtqueue.
pub struct Queue {
    name: QueueName,
    /// Upper half of every token: the lower is the slot.
    token_base: u64,
    checks: Checks,
    slots: Slots,
    /// Used entries were pushed by admitting.
    answered: bool,
    device: Arc<Device>,
    merge: MergeBuffer,
    /// When the present batch was taken. It only grows.
    taken: Stamp,
    /// What is finished and does not count yet.
    group: Group,
    /// A handle of its own: what it counts is one look away.
    stats: QueueStats,
}

/// Where chains come from while a queue is drained.
struct Source<'a> {
    ring: &'a mut virtqueue::Queue,
    memory: &'a GuestMemory,
    chain: &'a mut Chain,
}

impl Queue {
    /// Called `name`, for a ring of `size` entries. `token` names the queue among all of its iothread: block
    /// requests carry it in the upper half of their token. What it does is counted in `stats`, which no
    /// other running queue has.
    #[must_use]
    pub fn new(
        name: QueueName,
        device: Arc<Device>,
        size: u16,
        token: u32,
        stats: &QueueStats,
    ) -> Self {
        let slots = Slots::new(size, device.max_segments() + BORDER_SEGMENTS);
        Queue {
            name,
            token_base: u64::from(token) << 32,
            checks: device.checks(),
            slots,
            answered: false,
            device,
            merge: MergeBuffer::new(),
            taken: Stamp::default().next(),
            group: Group::default(),
            stats: stats.clone(),
        }
    }

    /// Requests of the guest that are not finished.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    /// Whether admitting has answered requests by itself since this was last asked: then the ring
    /// has entries to publish.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.answered)
    }

    /// What is admitted from here on is taken `now`, in [ticks](counters::Clock).
    #[inline(always)]
    pub fn begin_batch(&mut self, now: u64) {
        let taken = Stamp::new(now);
        // Whatever the clock does: generations are told apart by it.
        if taken > self.taken {
            self.taken = taken;
        }
    }

    /// Takes up to `budget` chains off the ring. What can be answered at once is pushed to the
    /// ring, the rest goes to the sink. What was completed before [counts](Self::end_batch) already.
    ///
    /// # Errors
    /// When the guest broke the queue. Requests before the breaking one were submitted.
    #[inline]
    pub fn admit(
        &mut self,
        ring: &mut virtqueue::Queue,
        memory: &GuestMemory,
        chain: &mut Chain,
        sink: &mut impl Sink,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        debug_assert!(
            self.group.is_empty(),
            "what was finished is told by how many are in flight"
        );
        // The disk may have another size than at the last batch.
        self.checks.capacity_bytes = self.device.capacity_bytes();
        let mut source = Source {
            ring,
            memory,
            chain,
        };
        let merging = self.merge.begin(self.device.merging()) && sink.merging_helps();
        let admission = self.drain(&mut source, sink, budget, merging);
        if merging {
            self.submit_merged(sink);
        }
        self.stats.end_turn(self.in_flight());
        admission
    }

    #[inline(always)]
    fn drain(
        &mut self,
        source: &mut Source<'_>,
        sink: &mut impl Sink,
        budget: usize,
        merging: bool,
    ) -> Result<Admission, AdmitError> {
        // What the sink takes for sure, beside what waits to be merged. A request takes one place at
        // most, so that the sink is asked again only when all of it could be used up.
        let mut room = 0;
        for _ in 0..budget {
            if room == 0 {
                room = sink.room().saturating_sub(self.merge.len());
                if room == 0 {
                    return Ok(Admission::Stalled);
                }
            }
            let Some(id) = source.ring.pop(source.memory, source.chain)? else {
                return Ok(Admission::Drained);
            };
            self.start(source, id, sink, merging)?;
            room -= 1;
        }
        Ok(Admission::Budget)
    }

    #[inline(always)]
    fn start(
        &mut self,
        source: &mut Source<'_>,
        id: ChainId,
        sink: &mut impl Sink,
        merging: bool,
    ) -> Result<(), RequestError> {
        if tracepoints::request_start::enabled() {
            probes::started(&self.name, source.chain, id);
        }
        let Frame {
            header,
            reply,
            readable,
            readable_len,
            read,
            read_len,
        } = Frame::of(source.chain)?;
        let (ring, sector) = (&mut *source.ring, header.sector);
        match header.kind & !T_BARRIER {
            T_IN => {
                self.transfer::<false>(ring, id, reply, (sector, read_len), read, sink, merging)
            }
            T_OUT if !self.checks.read_only => {
                let len = readable_len - HEADER_BYTES as u64;
                let data = without_header(readable);
                self.transfer::<true>(ring, id, reply, (sector, len), data, sink, merging)
            }
            _ => {
                // Put together anew: what is not asked for otherwise is in registers.
                let frame = Frame {
                    header,
                    reply,
                    readable,
                    readable_len,
                    read,
                    read_len,
                };
                self.start_other(ring, id, frame, sink, merging)
            }
        }
    }

    /// A read, or a write: code for each, so that nothing has to remember which it is.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "they are in registers")]
    fn transfer<const WRITE: bool>(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        reply: Reply,
        (sector, len): (u64, u64),
        data: &[iovec],
        sink: &mut impl Sink,
        merging: bool,
    ) -> Result<(), RequestError> {
        let (op, kind) = match WRITE {
            true => (Op::Write, Kind::Write),
            false => (Op::Read, Kind::Read),
        };
        let range = self.checks.checked_range(sector, len);
        let Some(offset) = range.filter(|_| len > 0 && data.len() <= self.slots.max_segments())
        else {
            // Without data there is nothing to do. More segments than we announce, and than borders explain, are refused.
            let status = match range {
                Some(_) if len == 0 => Status::Ok,
                _ => Status::IoErr,
            };
            self.counts(kind, status);
            self.answer(ring, id, reply, status);
            return Ok(());
        };
        let Some(slot) = self.take_slot(id, kind, reply, (offset, len), data) else {
            return Err(self.too_many());
        };
        if merging {
            if !self.merge.takes(op) {
                self.submit_merged(sink);
            }
            self.merge.push(op, offset, slot);
        } else {
            self.submit(op, slot, sink);
        }
        Ok(())
    }

    /// The same for what is neither a read nor a write. Out of line, so that they have the registers.
    #[inline(never)]
    fn start_other(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        frame: Frame<'_>,
        sink: &mut impl Sink,
        merging: bool,
    ) -> Result<(), RequestError> {
        let Frame { header, reply, .. } = frame;
        let kind = header.kind & !T_BARRIER;
        match self.checks.other(kind, frame.readable, frame.readable_len) {
            Parsed::NoData { op: Op::Flush, .. } if is_planted(Mistake::FlushEarly) => {
                self.answer(ring, id, reply, Status::Ok);
            }
            Parsed::NoData { op, offset, len } => {
                let slot = self.take_slot(id, Kind::of(op), reply, (offset, len), &[]);
                let Some(slot) = slot else {
                    return Err(self.too_many());
                };
                if let Op::WriteZeroes { unmap } = op {
                    self.slots.get_mut(slot).set_unmap(unmap);
                }
                if merging && self.merge.holds_writes() {
                    self.submit_merged(sink);
                }
                self.submit(op, slot, sink);
            }
            Parsed::Done { kind, status } => {
                if let Some(kind) = kind {
                    self.counts(kind, status);
                }
                self.answer(ring, id, reply, status);
            }
            Parsed::GetId => {
                self.get_id(frame.read);
                self.answer(ring, id, reply, Status::Ok);
            }
        }
        Ok(())
    }

    /// Finishes a request that needs no disk.
    #[inline(never)]
    fn answer(&mut self, ring: &mut virtqueue::Queue, id: ChainId, reply: Reply, status: Status) {
        if tracepoints::request_answer::enabled() {
            probes::answered(&self.name, id, status);
        }
        write_status(reply.status, status);
        ring.push(id, reply.writable);
        self.answered = true;
    }

    /// What has asked for no disk: it was refused, or for nothing.
    #[cold]
    fn counts(&mut self, kind: Kind, status: Status) {
        match status {
            Status::Ok => self.group.enter_nothing(kind, &self.stats),
            Status::IoErr | Status::Unsupported => self.stats.of(kind).invalid.add(1),
        }
    }

    #[cold]
    fn too_many(&self) -> RequestError {
        RequestError::TooMany(self.slots.count())
    }

    /// `None`: there are as many requests in flight as the ring has entries.
    #[inline(always)]
    fn take_slot(
        &mut self,
        id: ChainId,
        kind: Kind,
        reply: Reply,
        (offset, len): (u64, u64),
        data: &[iovec],
    ) -> Option<u32> {
        let (index, slot) = self.slots.take(data)?;
        slot.id = id;
        slot.status = reply.status;
        slot.written = reply.writable;
        slot.stamp = self.taken.of(kind);
        slot.offset = offset;
        slot.len = len;
        Some(index)
    }

    /// Out of line, so that what is not merged has the registers.
    #[inline(never)]
    fn submit_merged(&mut self, sink: &mut impl Sink) {
        let Queue {
            name,
            merge,
            slots,
            device,
            token_base,
            stats,
            ..
        } = self;
        let (kind, waited) = (Kind::of(merge.op()), merge.len());
        let mut left = 0;
        merge.drain(slots, |slots, op, slot| {
            left += 1;
            if tracepoints::request_submit::enabled() {
                probes::submitted(name, slots, op, slot);
            }
            hand_over(slots, op, slot, device, *token_base, stats, sink);
        });
        if left < waited {
            stats.of(kind).merged.add((waited - left) as u64);
        }
    }

    #[inline(always)]
    fn submit(&mut self, op: Op, slot: u32, sink: &mut impl Sink) {
        if tracepoints::request_submit::enabled() {
            probes::submitted(&self.name, &self.slots, op, slot);
        }
        hand_over(
            &mut self.slots,
            op,
            slot,
            &self.device,
            self.token_base,
            &self.stats,
            sink,
        );
    }

    fn get_id(&self, data: &[iovec]) {
        let serial = self.device.options().serial.as_bytes();
        // A shorter one ends with a zero byte.
        let mut id = [0; SERIAL_BYTES];
        id[..serial.len()].copy_from_slice(serial);
        copy_to(data, &id[..SERIAL_BYTES.min(serial.len() + 1)]);
    }

    /// Requests that are taken from now on can be told from those before: they are not stamped
    /// earlier than what is returned, and all others are.
    pub fn begin_generation(&mut self) -> Stamp {
        self.taken = self.taken.next();
        self.taken
    }

    /// Whether a request that is not done is a read: the others have but a status for the guest.
    #[must_use]
    pub fn is_read(&self, slot: u32) -> bool {
        self.slots.get(slot).written > 1
    }

    /// A block request is done `now`: fills in the used entries of all that was merged into it. It counts at
    /// the [end of the batch](Self::end_batch).
    #[inline(always)]
    pub fn complete(
        &mut self,
        ring: &mut virtqueue::Queue,
        slot: u32,
        result: Result<(), engine::Errno>,
        now: u64,
    ) -> Finished {
        if result.is_err() {
            return self.fail(ring, slot, now);
        }
        let done = self.finish(ring, slot, Status::Ok, now);
        let (taken, len, next) = (done.slot.stamp, done.slot.len, done.next);
        // All that was merged into it came at the same time, and its bytes are among these.
        let at = self.moment(now);
        self.group.add(taken, len, at, &self.stats);
        let mut requests = 1;
        if next != NONE {
            requests += self.finish_merged(ring, next, Status::Ok);
        }
        Finished { requests, taken }
    }

    /// The only block request of its batch has succeeded `now`. It counts at once: with nothing to be summed up with, it takes
    /// fewer steps.
    #[inline(always)]
    pub fn complete_alone(&mut self, ring: &mut virtqueue::Queue, slot: u32, now: u64) -> Finished {
        let done = self.finish(ring, slot, Status::Ok, now);
        let (taken, len, next) = (done.slot.stamp, done.slot.len, done.next);
        if next != NONE {
            return self.complete_alone_merged(ring, (taken, len, next), now);
        }
        let at = self.moment(now);
        self.group.enter_alone(taken, len, at, &self.stats);
        Finished { requests: 1, taken }
    }

    /// What was merged into it is a group.
    #[inline(never)]
    fn complete_alone_merged(
        &mut self,
        ring: &mut virtqueue::Queue,
        (taken, len, next): (Stamp, u64, u32),
        now: u64,
    ) -> Finished {
        let at = self.moment(now);
        self.group.add(taken, len, at, &self.stats);
        let requests = 1 + self.finish_merged(ring, next, Status::Ok);
        self.end_batch();
        Finished { requests, taken }
    }

    /// The disk has failed a block request, and all that was merged into it.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, ring: &mut virtqueue::Queue, slot: u32, now: u64) -> Finished {
        // Those that succeeded before, while it is still in flight.
        self.end_batch();
        let status = if is_planted(Mistake::ErrorSwallowed) {
            Status::Ok
        } else {
            Status::IoErr
        };
        let done = self.finish(ring, slot, status, now);
        let (taken, next) = (done.slot.stamp, done.next);
        let requests = 1 + self.finish_merged(ring, next, Status::IoErr);
        let kind = self.stats.of(taken.kind());
        kind.failed.add(requests.into());
        self.stats.in_flight().set(self.in_flight().into());
        Finished { requests, taken }
    }

    #[inline(always)]
    fn finish(
        &mut self,
        ring: &mut virtqueue::Queue,
        slot: u32,
        status: Status,
        now: u64,
    ) -> slots::Finished<'_> {
        if tracepoints::request_complete::enabled() {
            probes::completed(&self.name, &self.slots, slot, status, now);
        }
        let done = self.slots.give_back(slot);
        write_status(done.slot.status, status);
        ring.push(done.slot.id, done.slot.written);
        done
    }

    /// What was merged behind a block request, from `next` on; how many there were. Out of line, so that what
    /// was not merged has the registers.
    #[inline(never)]
    fn finish_merged(&mut self, ring: &mut virtqueue::Queue, mut next: u32, status: Status) -> u32 {
        let mut requests = 0;
        while next != NONE {
            let done = self.slots.give_back(next);
            if is_planted(Mistake::MergedTailLost) && done.next == NONE {
                return requests + 1;
            }
            write_status(done.slot.status, status);
            ring.push(done.slot.id, done.slot.written);
            requests += 1;
            next = done.next;
        }
        requests
    }

    /// What was completed so far counts from now on.
    #[inline]
    pub fn end_batch(&mut self) {
        self.group.enter(self.in_flight(), &self.stats);
    }

    #[inline(always)]
    fn moment(&self, now: u64) -> Moment {
        let in_flight = self.slots.in_flight();
        Moment { now, in_flight }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// What it counts in.
    #[must_use]
    #[inline]
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }
}

#[inline(always)]
fn hand_over(
    slots: &mut Slots,
    op: Op,
    slot: u32,
    device: &Device,
    token_base: u64,
    stats: &QueueStats,
    sink: &mut impl Sink,
) {
    let fua = match op {
        Op::Write | Op::WriteZeroes { .. } => writes(slots, slot, device, stats),
        Op::Read | Op::Flush | Op::Discard => false,
    };
    let (offset, len, iov) = slots.with_segments(slot);
    // A request has at most a ring's worth of segments.
    let iov_count = u32::try_from(iov.len()).unwrap_or(u32::MAX);
    let iov = iov.as_mut_ptr();
    let token = token_base | u64::from(slot);
    // SAFETY: the segments are checked guest memory, held until the request
    // is finished; the list lies in the
    // slot, which is not given back before `complete`.
    unsafe {
        sink.submit(Request {
            op,
            fua,
            offset,
            len,
            iov,
            iov_count,
            token,
        })
    };
}

/// A write is handed over: how far it reaches counts. Whether it is to be stable when it completes. Out of line, so that
/// reads have the registers.
#[inline(never)]
fn writes(slots: &Slots, slot: u32, device: &Device, stats: &QueueStats) -> bool {
    let slot = slots.get(slot);
    stats.highest_offset().raise(slot.offset + slot.len);
    !device.write_cache() && !is_planted(Mistake::FuaForgotten)
}

#[inline]
fn write_status(status: *mut u8, value: Status) {
    // SAFETY: `parse` found the byte in checked guest memory, and the map is held until the request
    // is finished. The guest may look at any time: one volatile byte.
    unsafe { status.write_volatile(value as u8) };
}
