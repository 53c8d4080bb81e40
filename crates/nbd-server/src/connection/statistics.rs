//! Counts of a connection's requests, in the statistics of its export's queue, and their tracepoints.
//!
//! The connections of an export on one iothread are counted as one queue, so they share its statistics.

use std::sync::Arc;

use block::{Op, Request, SECTOR_BYTES};
use telemetry::counters::{Scale, TickClock};
use telemetry::queue::{QueueName, QueueStats, RequestKind, RequestStatsWriter};
use telemetry::tracepoints::{blk_status_from_success, request_complete, request_submit};

use super::DEPTH;

/// Counts the requests of a connection.
pub(super) struct RequestCounter {
    name: QueueName,
    stats: Arc<QueueStats>,
    writer: RequestStatsWriter,
    clock: TickClock,
    /// Its own part of the requests in flight.
    in_flight: u64,
    is_counted_as_queue: bool,
}

impl RequestCounter {
    /// For a queue of an export.
    pub fn new(export: &str, queue: u16, stats: Arc<QueueStats>) -> Self {
        RequestCounter {
            name: QueueName::new(export, queue),
            stats,
            writer: RequestStatsWriter::default(),
            clock: TickClock::of_process(),
            in_flight: 0,
            is_counted_as_queue: false,
        }
    }

    /// The time in ticks.
    pub fn now_ticks(&self) -> u64 {
        self.clock.now()
    }

    /// Counts the places for requests of a connection as entries of its queue, once. It is called on the iothread, as all others.
    pub fn count_as_queue(&mut self) {
        if !self.is_counted_as_queue {
            self.is_counted_as_queue = true;
            self.stats.queue_size().add(DEPTH.into());
        }
    }

    /// Counts a turn that has submitted requests.
    pub fn count_turn(&self, has_submitted: bool) {
        self.stats.turns().add(has_submitted.into());
    }

    /// Counts a request that is submitted.
    pub fn count_submitted(&mut self, slot: u32, request: &Request) {
        self.in_flight += 1;
        let stats = &self.stats;
        stats.in_flight().add(1);
        if request.op.request_kind() == RequestKind::Write {
            let end = request.offset + request.len;
            stats.wr_highest_offset().raise_to(end);
        }
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

    /// Counts a request that has succeeded.
    pub fn count_succeeded(&mut self, slot: u32, op: Op, bytes: u64, admitted_at: u64) {
        let now = self.clock.now();
        let ticks = now.saturating_sub(admitted_at);
        self.writer
            .add_succeeded(&self.stats, op.request_kind(), 1, bytes, ticks);
        self.stats.last_success_ticks().set(now);
        self.end(slot, op, true, ticks);
    }

    /// Counts a request that has failed on the disk.
    pub fn count_failed(&mut self, slot: u32, op: Op) {
        self.stats.of_kind(op.request_kind()).failed.add(1);
        self.end(slot, op, false, 0);
    }

    /// Counts a request that was refused before it reached the disk.
    pub fn count_invalid(&self, op: Op) {
        self.stats.of_kind(op.request_kind()).invalid.add(1);
    }

    fn end(&mut self, slot: u32, op: Op, succeeded: bool, ticks: u64) {
        self.in_flight -= 1;
        self.stats.in_flight().subtract(1);
        if request_complete::enabled() {
            request_complete::fire(
                self.name.export(),
                self.name.index().into(),
                slot.into(),
                op.virtio_request_type().into(),
                blk_status_from_success(succeeded),
                Scale::measure().to_ns(ticks),
            );
        }
    }
}

impl Drop for RequestCounter {
    fn drop(&mut self) {
        // Requests whose remaining parts were not submitted.
        self.stats.in_flight().subtract(self.in_flight);
        if self.is_counted_as_queue {
            self.stats.queue_size().subtract(DEPTH.into());
        }
    }
}
