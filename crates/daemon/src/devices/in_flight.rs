//! Requests of a host adapter (LSI 53C895A) that are in flight: counts them in statistics, and fires tracepoints, when they are submitted
//! and completed.
//!
//! The adapter has no virtqueues. It is counted as one queue, in which a request is identified by its slot.

use std::sync::Arc;

use block::{Op, Request, SECTOR_BYTES, token};
use telemetry::counters::{Scale, TickClock};
use telemetry::queue::{QueueName, QueueStats, RequestKind, RequestStatsWriter};
use telemetry::tracepoints::{request_complete, request_submit};

/// A request in flight.
#[derive(Clone, Copy)]
pub(crate) struct SubmittedRequestRecord {
    pub disk: usize,
    pub kind: RequestKind,
    op: Op,
    bytes: u64,
    /// When it was submitted, in ticks.
    submitted_at: u64,
}

/// All requests of an adapter that are in flight.
pub(crate) struct AdapterInFlightRequests {
    name: QueueName,
    /// Counters of the adapter.
    queue_stats: Arc<QueueStats>,
    /// Counters of each disk.
    disk_stats: Vec<Arc<QueueStats>>,
    /// By slot.
    slots: Vec<Option<SubmittedRequestRecord>>,
    writer: RequestStatsWriter,
    clock: TickClock,
}

impl AdapterInFlightRequests {
    /// Without requests, of the export of this id.
    pub fn new(
        export: &str,
        queue_stats: Arc<QueueStats>,
        disk_stats: Vec<Arc<QueueStats>>,
    ) -> Self {
        AdapterInFlightRequests {
            name: QueueName::new(export, 0),
            queue_stats,
            disk_stats,
            slots: Vec::new(),
            writer: RequestStatsWriter::default(),
            clock: TickClock::of_process(),
        }
    }

    /// The time in ticks.
    pub fn now_ticks(&self) -> u64 {
        self.clock.now()
    }

    /// Records a request that is submitted at `now_ticks`.
    pub fn count_and_record_submitted(&mut self, disk: u32, request: &Request, now_ticks: u64) {
        let (disk, slot) = (disk as usize, token::request_number(request.token));
        let kind = request.op.request_kind();
        let stats = &self.disk_stats[disk];
        stats.in_flight().add(1);
        if kind == RequestKind::Write {
            let end = request.offset + request.len;
            self.queue_stats.wr_highest_offset().raise_to(end);
            stats.wr_highest_offset().raise_to(end);
        }
        let index = slot as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(SubmittedRequestRecord {
            disk,
            kind,
            op: request.op,
            bytes: request.len,
            submitted_at: now_ticks,
        });
        if request_submit::enabled() {
            request_submit::fire(
                self.name.export(),
                self.name.index().into(),
                slot.into(),
                request.op.virtio_request_type().into(),
                request.offset / SECTOR_BYTES,
                request.len,
            );
        }
    }

    /// Counts and returns the completed request of a slot; `None` if the slot has none.
    pub fn take_and_count_completed(
        &mut self,
        slot: u32,
        succeeded: bool,
    ) -> Option<SubmittedRequestRecord> {
        let request = self.slots.get_mut(slot as usize)?.take()?;
        let SubmittedRequestRecord { kind, bytes, .. } = request;
        let now = self.clock.now();
        let ticks = now.saturating_sub(request.submitted_at);
        let disk_stats = &self.disk_stats[request.disk];
        disk_stats.in_flight().subtract(1);
        if succeeded {
            self.writer
                .add_succeeded(&self.queue_stats, kind, 1, bytes, ticks);
            disk_stats.of_kind(kind).add_succeeded(1, bytes, ticks);
            self.queue_stats.last_success_ticks().set(now);
            disk_stats.last_success_ticks().set(now);
        } else {
            self.queue_stats.of_kind(kind).failed.add(1);
            disk_stats.of_kind(kind).failed.add(1);
        }
        if request_complete::enabled() {
            request_complete::fire(
                self.name.export(),
                self.name.index().into(),
                slot.into(),
                request.op.virtio_request_type().into(),
                telemetry::tracepoints::blk_status_from_success(succeeded),
                Scale::measure().to_ns(ticks),
            );
        }
        Some(request)
    }
}
