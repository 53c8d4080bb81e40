//! Counts of an export's requests that are parked now and of those that were late so far, for other threads, and the
//! registry of its queues, which get the commands to resume parked requests and to report late ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Errno;
use telemetry::queue::QueueStats;

use super::{DeviceCommand, Message};
use crate::event_loop::Remote;

/// How parked requests are resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeAction {
    /// They are retried in the order in which they failed.
    Retry,
    /// They are completed with an error.
    Report,
}

/// I/O status of an export's disk, as QEMU's `io-status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoStatus {
    /// No request is parked.
    Ok,
    /// Requests are parked because the disk is full, or was when the last of them failed.
    NoSpace,
    /// Requests are parked because of another error.
    Failed,
}

impl IoStatus {
    /// QEMU's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoStatus::Ok => "ok",
            IoStatus::NoSpace => "nospace",
            IoStatus::Failed => "failed",
        }
    }
}

/// A running queue of an export: where its commands are sent, and its statistics.
struct RegisteredQueue {
    remote: Remote<Message>,
    source_index: u32,
    stats: Arc<QueueStats>,
}

/// Counts of the parked and late requests of an export, its I/O status, and its running queues.
#[derive(Default)]
pub struct ExportQueues {
    count: AtomicU64,
    no_space: AtomicBool,
    late: AtomicU64,
    queues: Mutex<Vec<RegisteredQueue>>,
}

impl ExportQueues {
    /// Number of parked requests.
    #[must_use]
    pub fn parked_count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Number of requests that took too long, since the export was created.
    #[must_use]
    pub fn late_total(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// The I/O status.
    #[must_use]
    pub fn io_status(&self) -> IoStatus {
        match (self.parked_count(), self.no_space.load(Ordering::Relaxed)) {
            (0, _) => IoStatus::Ok,
            (_, true) => IoStatus::NoSpace,
            (_, false) => IoStatus::Failed,
        }
    }

    /// Has each queue retry or fail its parked requests, some time after this returns.
    pub fn send_resume_to_queues(&self, how: ResumeAction) {
        self.send_to_queues_where(|_| true, || DeviceCommand::Resume(how));
    }

    /// Has each queue with requests in flight report those that were admitted from `after` on and before `until`, in ticks.
    pub fn send_report_late_to_queues(&self, after: u64, until: u64) {
        let busy = |stats: &QueueStats| stats.in_flight().get() > 0;
        self.send_to_queues_where(busy, || DeviceCommand::ReportLate(after, until));
    }

    /// Sends a command to each queue of the export whose statistics are `is_addressed`.
    fn send_to_queues_where(
        &self,
        is_addressed: impl Fn(&QueueStats) -> bool,
        command: impl Fn() -> DeviceCommand,
    ) {
        for queue in self
            .lock_queues()
            .iter()
            .filter(|queue| is_addressed(&queue.stats))
        {
            // An iothread that is gone has taken the queue with it.
            let _ = queue
                .remote
                .send(Message::Device(queue.source_index, command()));
        }
    }

    pub(crate) fn add_to_late_total(&self, requests: u32) {
        self.late.fetch_add(requests.into(), Ordering::Relaxed);
    }

    pub(crate) fn add_parked_and_set_io_status(&self, requests: u32, errno: Errno) {
        self.no_space
            .store(errno == Errno::NOSPC, Ordering::Relaxed);
        self.count.fetch_add(requests.into(), Ordering::Relaxed);
    }

    pub(crate) fn subtract_resumed(&self, requests: u32) {
        self.count.fetch_sub(requests.into(), Ordering::Relaxed);
    }

    /// Adds a running queue, which has this index on the iothread that `remote` leads to.
    pub(super) fn add_queue(
        &self,
        remote: Remote<Message>,
        source_index: u32,
        stats: Arc<QueueStats>,
    ) {
        self.lock_queues().push(RegisteredQueue {
            remote,
            source_index,
            stats,
        });
    }

    /// Removes the queue with these statistics.
    pub(super) fn remove_queue(&self, stats: &Arc<QueueStats>) {
        self.lock_queues()
            .retain(|queue| !Arc::ptr_eq(&queue.stats, stats));
    }

    fn lock_queues(&self) -> MutexGuard<'_, Vec<RegisteredQueue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
