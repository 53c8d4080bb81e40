//! A queue of the device: chains in, block requests out; completions in, used entries out.

mod parked;

use std::sync::Arc;

use block::{DiskIo, Op, Request, token};
use engine::{Completion, Errno};
use libc::iovec;
use telemetry::queue::{
    AdmissionEnd, AdmitTimeAndKind, CompletionGroup, QueueName, QueueStats, RequestKind,
};
use virtqueue::{Chain, ChainId, GuestMemory, RingError};

use crate::device::{Device, SERIAL_BYTES};
use crate::merge::{MergeBuffer, MergeLimits};
use crate::parse::{
    NonTransfer, ReplyLocation, RequestError, RequestLimits, RequestParts, copy_to_guest,
    skip_header,
};
use crate::probes;
use crate::slots::{NO_SLOT, Slots};
use crate::wire::{HEADER_BYTES, Status, T_BARRIER, T_IN, T_OUT};

pub use parked::RetryOutcome;

/// Segments that a request may have beyond the announced number: a buffer across the border of two memory regions is one
/// descriptor of the guest and two segments here. Few requests cross one border, hardly any crosses more.
const BORDER_SEGMENTS: u32 = 8;

/// The index of the disk in its queue, which has one disk.
const DISK: u32 = 0;

/// Error of a guest that broke the queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Malformed ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Malformed request.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// A queue of the device, without its ring.
pub struct Queue {
    name: QueueName,
    limits: RequestLimits,
    slots: Slots,
    /// Requests were answered without the disk, and their used entries are not published yet.
    has_unpublished: bool,
    device: Arc<Device>,
    /// When the current batch was admitted. It only grows.
    batch_admit_time: AdmitTimeAndKind,
    /// The admit time that the current generation begins with.
    generation_start: AdmitTimeAndKind,
    /// Requests of older generations that have left the queue.
    finished_old: Vec<(AdmitTimeAndKind, u32)>,
    /// Completed requests that do not count yet.
    completion_group: CompletionGroup,
    stats: QueueStats,
}

/// An admission in progress.
struct AdmissionBatch<'a, D> {
    ring: &'a mut virtqueue::Queue,
    io: &'a mut D,
    merge: MergeBuffer,
}

impl Queue {
    /// A queue with this name, for a ring of `size` entries. It counts in `stats`, which no other running queue has.
    #[must_use]
    pub fn new(name: QueueName, device: Arc<Device>, size: u16, stats: &QueueStats) -> Self {
        let slots = Slots::new(size, device.max_segments() + BORDER_SEGMENTS);
        Queue {
            name,
            limits: device.initial_request_limits(),
            slots,
            has_unpublished: false,
            device,
            batch_admit_time: AdmitTimeAndKind::default().next_tick(),
            generation_start: AdmitTimeAndKind::default(),
            finished_old: Vec::new(),
            completion_group: CompletionGroup::default(),
            stats: stats.clone(),
        }
    }

    /// Number of unfinished requests of the guest.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    /// Whether requests were answered without the disk since the last call: then the ring has entries to publish.
    #[inline]
    pub fn take_has_unpublished(&mut self) -> bool {
        std::mem::take(&mut self.has_unpublished)
    }

    /// Begins a batch that is admitted at `now`, in [ticks](telemetry::counters::TickClock).
    #[inline]
    pub fn begin_batch(&mut self, now: u64) {
        let admit_time = AdmitTimeAndKind::from_ticks(now);
        // It never goes back, whatever the clock does: generations are distinguished by it.
        if admit_time > self.batch_admit_time {
            self.batch_admit_time = admit_time;
        }
    }

    /// Admits up to `budget` requests from the ring. Requests that need no disk are pushed to the ring at once, the others go to
    /// the disk.
    ///
    /// # Errors
    /// When the guest broke the queue. Requests before the malformed one were submitted.
    #[inline]
    pub fn admit_from_ring(
        &mut self,
        ring: &mut virtqueue::Queue,
        memory: &GuestMemory,
        chain: &mut Chain,
        io: &mut impl DiskIo,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        // The disk may have another size than at the last batch.
        self.limits.capacity_bytes = self.device.capacity_bytes();
        let limits = match io.merging_helps(DISK) {
            true => self.device.merge_limits(),
            false => MergeLimits::OFF,
        };
        let merge = MergeBuffer::new(limits);
        let mut batch = AdmissionBatch { ring, io, merge };
        let admission = self.admit_chains(&mut batch, memory, chain, budget);
        self.merge_and_submit_collected(&mut batch);
        self.stats.count_turn_and_set_in_flight(self.in_flight());
        admission
    }

    /// Pops up to `budget` chains and starts their requests, as long as the disk has room.
    #[inline]
    fn admit_chains(
        &mut self,
        batch: &mut AdmissionBatch<'_, impl DiskIo>,
        memory: &GuestMemory,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        // What the disk has room for, beside the collected requests. A request needs one place at most, so the room is queried
        // again only when all of it could be used up.
        let mut room = 0;
        for _ in 0..budget {
            if room == 0 {
                room = batch.io.room(DISK).saturating_sub(batch.merge.len());
                if room == 0 {
                    return Ok(AdmissionEnd::Stalled);
                }
            }
            let Some(id) = batch.ring.pop(memory, chain)? else {
                return Ok(AdmissionEnd::Drained);
            };
            self.start_request(batch, chain, id)?;
            room -= 1;
        }
        Ok(AdmissionEnd::Budget)
    }

    /// Starts the request of a popped chain: reads and writes are collected, others submitted or answered.
    #[inline]
    fn start_request(
        &mut self,
        batch: &mut AdmissionBatch<'_, impl DiskIo>,
        chain: &mut Chain,
        id: ChainId,
    ) -> Result<(), RequestError> {
        if telemetry::tracepoints::request_start::enabled() {
            probes::fire_request_start(&self.name, chain, id);
        }
        let parts = RequestParts::split(chain)?;
        let (sector, reply) = (parts.header.sector, parts.reply);
        match parts.header.kind & !T_BARRIER {
            T_IN => {
                let range = (sector, parts.writable_data_len);
                self.check_and_collect_transfer(
                    Op::Read,
                    batch,
                    (id, reply),
                    range,
                    parts.writable_data,
                )
            }
            T_OUT if !self.limits.read_only => {
                let range = (sector, parts.readable_len - HEADER_BYTES as u64);
                let data = skip_header(parts.readable);
                self.check_and_collect_transfer(Op::Write, batch, (id, reply), range, data)
            }
            _ => self.start_non_transfer(batch, id, parts),
        }
    }

    /// Starts a read or a write: checks its range, and collects it for merging.
    #[inline(always)]
    fn check_and_collect_transfer(
        &mut self,
        op: Op,
        batch: &mut AdmissionBatch<'_, impl DiskIo>,
        (id, reply): (ChainId, ReplyLocation),
        (sector, len): (u64, u64),
        data: &[iovec],
    ) -> Result<(), RequestError> {
        let kind = op.request_kind();
        let range = self.limits.checked_offset(sector, len);
        // More segments than announced, and than borders explain, are refused.
        let fits = len > 0 && data.len() <= self.slots.max_segments();
        let Some(offset) = range.filter(|_| fits) else {
            let status = match range {
                Some(_) if len == 0 => Status::Ok,
                _ => Status::IoErr,
            };
            self.answer_diskless_request(batch.ring, (id, reply), Some(kind), status);
            return Ok(());
        };
        let slot = self.allocate_and_fill_slot(id, kind, reply, (offset, len), data)?;
        if !batch.merge.accepts(op) {
            self.merge_and_submit_collected(batch);
        }
        batch.merge.push(op, offset, slot);
        Ok(())
    }

    /// Starts a request that is neither a read nor a write: submits a flush, discard or write-zeroes, and answers the rest at once.
    fn start_non_transfer(
        &mut self,
        batch: &mut AdmissionBatch<'_, impl DiskIo>,
        id: ChainId,
        parts: RequestParts<'_>,
    ) -> Result<(), RequestError> {
        let RequestParts { header, reply, .. } = parts;
        let kind = header.kind & !T_BARRIER;
        match self
            .limits
            .parse_non_transfer(kind, parts.readable, parts.readable_len)
        {
            NonTransfer::NoData { op, offset, len } => {
                let slot =
                    self.allocate_and_fill_slot(id, op.request_kind(), reply, (offset, len), &[])?;
                if let Op::WriteZeroes { unmap } = op {
                    self.slots.get_mut(slot).set_may_unmap(unmap);
                }
                if batch.merge.has_writes() {
                    self.merge_and_submit_collected(batch);
                }
                self.submit(op, slot, batch.io);
            }
            NonTransfer::Answered { kind, status } => {
                self.answer_diskless_request(batch.ring, (id, reply), kind, status)
            }
            NonTransfer::GetId => {
                self.copy_serial_to(parts.writable_data);
                self.answer_diskless_request(batch.ring, (id, reply), None, Status::Ok);
            }
        }
        Ok(())
    }

    /// Answers a request that needs no disk. It is counted if it has a kind.
    fn answer_diskless_request(
        &mut self,
        ring: &mut virtqueue::Queue,
        (id, reply): (ChainId, ReplyLocation),
        kind: Option<RequestKind>,
        status: Status,
    ) {
        if let Some(kind) = kind {
            self.count_without_disk(kind, status);
        }
        if telemetry::tracepoints::request_answer::enabled() {
            probes::fire_answered_without_disk(&self.name, id, status);
        }
        write_status(reply.status, status);
        ring.push(id, reply.used_len);
        self.has_unpublished = true;
    }

    /// Counts a request that needed no disk: it was invalid, or had no data.
    #[cold]
    fn count_without_disk(&mut self, kind: RequestKind, status: Status) {
        match status {
            Status::Ok => self
                .completion_group
                .count_success_without_disk(kind, &self.stats),
            Status::IoErr | Status::Unsupported => self.stats.of_kind(kind).invalid.add(1),
        }
    }

    /// Allocates a slot for a request and fills it in. The guest broke the queue if all are in flight.
    #[inline]
    fn allocate_and_fill_slot(
        &mut self,
        id: ChainId,
        kind: RequestKind,
        reply: ReplyLocation,
        (offset, len): (u64, u64),
        data: &[iovec],
    ) -> Result<u32, RequestError> {
        let count = self.slots.slot_count();
        let (index, slot) = self
            .slots
            .allocate_with_segments(data)
            .ok_or(RequestError::TooMany(count))?;
        slot.id = id;
        slot.status = reply.status;
        slot.used_len = reply.used_len;
        slot.admitted = self.batch_admit_time.with_kind(kind);
        slot.offset = offset;
        slot.len = len;
        Ok(index)
    }

    /// Merges and submits the collected requests.
    fn merge_and_submit_collected(&mut self, batch: &mut AdmissionBatch<'_, impl DiskIo>) {
        let AdmissionBatch { io, merge, .. } = batch;
        if merge.len() == 0 {
            return;
        }
        let (op, collected) = (merge.op(), merge.len());
        let merged_count = merge.merge_adjacent(&mut self.slots);
        for index in 0..merged_count {
            self.submit(op, merge.slot_of_merged_request(index), *io);
        }
        if merged_count < collected {
            let merged = &self.stats.of_kind(op.request_kind()).merged;
            merged.add((collected - merged_count) as u64);
        }
    }

    /// Submits the block request in a slot, with all requests that were merged into it.
    #[inline(always)]
    fn submit(&mut self, op: Op, slot: u32, io: &mut impl DiskIo) {
        if telemetry::tracepoints::request_submit::enabled() {
            probes::fire_request_submit(&self.name, &self.slots, op, slot);
        }
        let request = self.build_block_request(op, slot);
        if is_write(op) {
            let end = request.offset + request.len;
            self.stats.wr_highest_offset().raise_to(end);
        }
        // SAFETY: the segments are checked guest memory, held until the request is finished; the list lies in the slot, which is
        // not released before `complete_block_requests`.
        unsafe { io.submit(DISK, request) };
    }

    /// The block request of a slot.
    #[inline(always)]
    fn build_block_request(&mut self, op: Op, slot: u32) -> Request {
        let fua = is_write(op) && !self.device.is_write_cache_enabled();
        let (offset, len, iov) = self.slots.range_and_segments(slot);
        Request {
            op,
            fua,
            offset,
            len,
            // A request has at most a ring's worth of segments.
            iov_count: u32::try_from(iov.len()).unwrap_or(u32::MAX),
            iov: iov.as_mut_ptr(),
            token: slot.into(),
        }
    }

    /// Copies the serial to the buffer of `GET_ID`, ended by a zero byte if it is short.
    fn copy_serial_to(&self, data: &[iovec]) {
        let serial = self.device.options().serial.as_bytes();
        let mut id = [0; SERIAL_BYTES];
        id[..serial.len()].copy_from_slice(serial);
        copy_to_guest(data, &id[..SERIAL_BYTES.min(serial.len() + 1)]);
    }

    /// Begins a generation: requests admitted from now on have admit times from the returned one on, all others have earlier
    /// ones.
    pub fn begin_generation(&mut self) -> AdmitTimeAndKind {
        self.batch_admit_time = self.batch_admit_time.next_tick();
        self.generation_start = self.batch_admit_time;
        self.generation_start
    }

    /// The admit time and the number of requests of an older generation that have left the queue.
    #[inline]
    pub fn pop_finished_of_older_generation(&mut self) -> Option<(AdmitTimeAndKind, u32)> {
        self.finished_old.pop()
    }

    /// Whether an unfinished request is a read.
    #[must_use]
    pub fn is_read(&self, slot: u32) -> bool {
        self.slots.get(slot).admitted.kind() == RequestKind::Read
    }

    /// Completes block requests at `now`: answers the guest's requests that were merged into each. `on_failure` is called for
    /// those that the disk has failed, and returns the status to answer with, or `None` for a request that is parked. Requests count at
    /// the [end of the batch](Self::record_batch_statistics).
    pub fn complete_block_requests(
        &mut self,
        ring: &mut virtqueue::Queue,
        done: &[Completion],
        now: u64,
        mut on_failure: impl FnMut(&Queue, u32, Errno) -> Option<Status>,
    ) {
        for completion in done {
            let slot = token::request_number(completion.token);
            let status = match completion.result {
                Ok(()) => Some(Status::Ok),
                Err(errno) => on_failure(self, slot, errno),
            };
            if let Some(status) = status {
                self.answer_merged(ring, slot, status, now);
            }
        }
    }

    /// Answers a block request, and all that was merged into it.
    #[inline]
    fn answer_merged(&mut self, ring: &mut virtqueue::Queue, first: u32, status: Status, now: u64) {
        if telemetry::tracepoints::request_complete::enabled() {
            probes::fire_requests_complete(&self.name, &self.slots, first, status, now);
        }
        let slot = self.slots.get(first);
        // These include the bytes of all requests that were merged into it.
        let (admitted, bytes) = (slot.admitted, slot.len);
        let (mut next, mut requests) = (first, 0);
        while next != NO_SLOT {
            let done = self.slots.release(next);
            requests += 1;
            next = done.next;
            write_status(done.slot.status, status);
            ring.push(done.slot.id, done.slot.used_len);
        }
        if status == Status::Ok {
            self.completion_group
                .add_and_drain_others(admitted, requests, bytes, now, &self.stats);
        } else {
            self.stats
                .of_kind(admitted.kind())
                .failed
                .add(requests.into());
        }
        self.record_finished_if_of_older_generation(admitted, requests);
    }

    /// Counts requests of an older generation that have left their slots.
    #[inline]
    fn record_finished_if_of_older_generation(
        &mut self,
        admitted: AdmitTimeAndKind,
        requests: u32,
    ) {
        if admitted < self.generation_start {
            self.finished_old.push((admitted, requests));
        }
    }

    /// Counts the requests that were completed so far.
    #[inline]
    pub fn record_batch_statistics(&mut self) {
        self.completion_group.drain_into_stats(&self.stats);
        self.stats.in_flight().set(self.in_flight().into());
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Its statistics.
    #[must_use]
    #[inline]
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }
}

/// Whether the operation is a write or a write-zeroes.
#[inline]
fn is_write(op: Op) -> bool {
    matches!(op, Op::Write | Op::WriteZeroes { .. })
}

/// Writes the status byte of a request to the guest's memory.
#[inline]
fn write_status(status: *mut u8, value: Status) {
    // SAFETY: `parse` found the byte in checked guest memory, and the map is held until the request
    // is finished. The guest may read it at any time: one volatile byte.
    unsafe { status.write_volatile(value as u8) };
}
