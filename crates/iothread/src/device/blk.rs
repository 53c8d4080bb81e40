//! A virtio-blk queue on an iothread: admits and completes its requests, and parks, retries or answers those that the disk failed.

use block::{AttachedDisk, SourceIo};
use engine::{Completion, Errno};
use telemetry::queue::{AdmissionEnd, AdmitTimeAndKind, QueueName, QueueStats};
use virtio_blk::{RetryOutcome, Status};
use virtqueue::Chain;

use super::parked::{ParkedList, ParkedRequest};
use super::{BrokenQueueError, InFlightCounts, ParkedStopAction, QueueContext, QueueDevice};
use crate::messages::{QueueReporter, ResumeAction};
use crate::on_error::ErrorAction;

/// A virtio-blk queue, its disk and its parked requests.
pub(crate) struct BlkQueue {
    queue: virtio_blk::Queue,
    disk: [AttachedDisk; 1],
    parked: ParkedList,
}

impl BlkQueue {
    pub fn new(queue: virtio_blk::Queue, disk: AttachedDisk) -> Self {
        BlkQueue {
            queue,
            disk: [disk],
            parked: ParkedList::default(),
        }
    }

    /// Retries as many parked requests as there is room for; true: all that are to be retried. None while the queue is
    /// disabled: its disk may be about to be replaced.
    fn try_submit_pending_retries(&mut self, cx: &mut QueueContext<'_>) -> bool {
        while self.parked.has_pending_retries() {
            if !cx.enabled {
                self.parked.defer_retries_until_enabled();
                return true;
            }
            if cx.io.room(&self.disk[0]) == 0 {
                return false;
            }
            let Some(parked) = self.parked.pop_and_count(cx.reports) else {
                return true;
            };
            let io = &mut SourceIo {
                io: cx.io,
                disks: &self.disk,
                source_index: cx.source_index,
                in_flight: 0,
            };
            if self.queue.retry_unless_beyond_end(parked.slot, io) == RetryOutcome::BeyondEnd {
                self.report_and_fail_parked_request(&parked, cx);
            }
        }
        true
    }

    /// Answers a parked request as failed.
    fn report_and_fail_parked_request(
        &mut self,
        parked: &ParkedRequest,
        cx: &mut QueueContext<'_>,
    ) {
        if let Some(reports) = cx.reports {
            let read = self.queue.is_read(parked.slot);
            reports
                .export
                .report_error_sent_to_guest(read, parked.errno);
        }
        self.queue.answer_as_failed(cx.ring, parked.slot, cx.now);
    }
}

/// Handles a block request that the disk has failed. Returns the status to answer with; `None`: it is parked.
fn report_and_park_or_get_status(
    queue: &virtio_blk::Queue,
    parked: &mut ParkedList,
    reports: Option<&QueueReporter>,
    slot: u32,
    errno: Errno,
) -> Option<Status> {
    let Some(reports) = reports else {
        return Some(Status::IoErr);
    };
    match reports.export.report_failure(queue.is_read(slot), errno) {
        ErrorAction::Ignore => Some(Status::Ok),
        ErrorAction::Stop => {
            let requests = u32::try_from(queue.merged_slots(slot).count()).unwrap_or(u32::MAX);
            let request = ParkedRequest {
                slot,
                requests,
                errno,
            };
            parked.push_and_count(request, reports);
            None
        }
        ErrorAction::Report => Some(Status::IoErr),
    }
}

impl QueueDevice for BlkQueue {
    fn queue_name(&self) -> &QueueName {
        self.queue.name()
    }

    fn queue_stats(&self) -> &QueueStats {
        self.queue.stats()
    }

    fn disks(&self) -> &[AttachedDisk] {
        &self.disk
    }

    fn into_disks(self: Box<Self>) -> Vec<AttachedDisk> {
        self.disk.into()
    }

    fn in_flight_counts(&self) -> InFlightCounts {
        InFlightCounts {
            requests: self.queue.in_flight(),
            parked: self.parked.guest_request_count(),
        }
    }

    /// Begins a batch and admits requests; their admit time is the present.
    fn admit(
        &mut self,
        cx: QueueContext<'_>,
        chain: &mut Chain,
        budget: usize,
    ) -> Result<AdmissionEnd, BrokenQueueError> {
        let counts = self.in_flight_counts();
        let in_flight = counts.requests.saturating_sub(counts.parked) as usize;
        let io = &mut SourceIo {
            io: cx.io,
            disks: &self.disk,
            source_index: cx.source_index,
            in_flight,
        };
        self.queue.begin_batch(cx.now);
        Ok(self
            .queue
            .admit_from_ring(cx.ring, cx.memory, chain, io, budget)?)
    }

    fn take_pushed_outside_completions(&mut self) -> bool {
        self.queue.take_has_unpublished()
    }

    fn complete(&mut self, done: &[Completion], cx: QueueContext<'_>) {
        let BlkQueue { queue, parked, .. } = self;
        queue.complete_block_requests(cx.ring, done, cx.now, |queue, slot, errno| {
            report_and_park_or_get_status(queue, parked, cx.reports, slot, errno)
        });
    }

    fn count_completions_and_has_waiting(&mut self) -> bool {
        self.queue.record_batch_statistics();
        false
    }

    fn submit_waiting(&mut self, mut cx: QueueContext<'_>) -> bool {
        self.try_submit_pending_retries(&mut cx)
    }

    /// With `Report` all are answered. With `Retry` those that find no room, or a disabled queue, are retried later.
    fn retry_or_fail_parked(&mut self, how: ResumeAction, mut cx: QueueContext<'_>) -> bool {
        match how {
            ResumeAction::Report => {
                while let Some(parked) = self.parked.pop_and_count(cx.reports) {
                    self.report_and_fail_parked_request(&parked, &mut cx);
                }
                true
            }
            ResumeAction::Retry => {
                self.parked.mark_all_for_retry();
                self.try_submit_pending_retries(&mut cx)
            }
        }
    }

    fn on_enabled(&mut self, cx: QueueContext<'_>) -> bool {
        !self.parked.take_retry_on_enable() || self.retry_or_fail_parked(ResumeAction::Retry, cx)
    }

    /// Parked requests that may stay in the in-flight region are found there by the next process. Else they are returned to
    /// the ring if no other requests were popped after the first of them, and are answered as failed if some were.
    fn leave_return_or_fail_parked(&mut self, how: ParkedStopAction, mut cx: QueueContext<'_>) {
        let queue = &self.queue;
        let slots = self
            .parked
            .slots()
            .flat_map(|slot| queue.merged_slots(slot));
        let chains: Vec<_> = slots.map(|slot| queue.slot_chain_id(slot)).collect();
        if chains.is_empty() {
            return;
        }
        let recorded = how == ParkedStopAction::LeaveInRegion && cx.ring.has_recorder();
        let kept = recorded || cx.ring.try_unpop_chains_and_mark_dirty(&chains);
        let name = queue.name();
        if recorded {
            cx.ring.mark_unpushed_chains_dirty(&chains);
            tracing::info!(
                export = %name.export().to_string_lossy(),
                queue = name.index(),
                requests = chains.len(),
                "parked requests stay in the front-end's in-flight region"
            );
        } else if !kept {
            tracing::warn!(
                export = %name.export().to_string_lossy(),
                queue = name.index(),
                requests = chains.len(),
                advice = "to keep such requests, resume or end them before their front-end stops the queue",
                "parked requests are reported as failed: the queue stops"
            );
        }
        while let Some(parked) = self.parked.pop_and_count(cx.reports) {
            if kept {
                self.queue.release_unanswered(parked.slot);
            } else {
                self.report_and_fail_parked_request(&parked, &mut cx);
            }
        }
    }

    fn begin_generation(&mut self) -> AdmitTimeAndKind {
        self.queue.begin_generation()
    }

    fn pop_finished_of_older_generation(&mut self) -> Option<(AdmitTimeAndKind, u32)> {
        self.queue.pop_finished_of_older_generation()
    }

    fn slots_of_older_generations(&self) -> Vec<u32> {
        self.queue.slots_of_older_generations().collect()
    }

    fn older_generation_parked_count(&self) -> u32 {
        self.parked
            .guest_request_count_where(|slot| self.queue.is_old(slot))
    }

    /// Leaves out requests that were merged into a parked one.
    fn report_late_except_parked(&self, after: u64, until: u64, now: u64, reports: &QueueReporter) {
        let queue = &self.queue;
        let parked = self
            .parked
            .slots()
            .flat_map(|slot| queue.merged_slots(slot));
        let parked: Vec<u32> = parked.collect();
        let (requests, oldest) =
            queue.count_and_oldest_admitted_between(after, until, |slot| parked.contains(&slot));
        if requests > 0 {
            let oldest_ticks = now.saturating_sub(oldest);
            reports
                .export
                .count_and_report_late(reports.queue, requests, oldest_ticks);
        }
    }

    fn disk_for_fixed_buffers(&self) -> Option<&AttachedDisk> {
        Some(&self.disk[0])
    }

    fn replace_disk(&mut self, disk: AttachedDisk) -> AttachedDisk {
        std::mem::replace(&mut self.disk[0], disk)
    }
}
