//! Parked and late requests of an export, as other threads see them, and the way to its queues.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::Errno;
use telemetry::queue::QueueStats;

use super::{DeviceCommand, ExportReports, Message};
use crate::event_loop::Remote;

/// The way in which parked requests are resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// They are tried once more, in the order in which they failed.
    Retry,
    /// They are completed with an error.
    Report,
}

/// How an export's disk does, as QEMU's `io-status` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoStatus {
    /// No request waits.
    Ok,
    /// Requests wait because the disk is full, or was when the last of them failed.
    NoSpace,
    /// They wait because of another error.
    Failed,
}

impl IoStatus {
    /// As QEMU calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IoStatus::Ok => "ok",
            IoStatus::NoSpace => "nospace",
            IoStatus::Failed => "failed",
        }
    }
}

/// A queue that runs.
struct QueueAddress {
    remote: Remote<Message>,
    place: u32,
    stats: Arc<QueueStats>,
}

/// A queue is among those of its export until this is dropped.
pub(crate) struct QueueRegistration {
    export: Arc<ExportReports>,
    stats: Arc<QueueStats>,
}

impl QueueRegistration {
    /// The queue with these figures is at that place of the iothread at the end of `remote`.
    pub fn new(
        export: Arc<ExportReports>,
        remote: &Remote<Message>,
        place: u32,
        stats: Arc<QueueStats>,
    ) -> Self {
        export.waiting().queues().push(QueueAddress {
            remote: remote.clone(),
            place,
            stats: stats.clone(),
        });
        QueueRegistration { export, stats }
    }
}

impl Drop for QueueRegistration {
    fn drop(&mut self) {
        let mut queues = self.export.waiting().queues();
        queues.retain(|queue| !Arc::ptr_eq(&queue.stats, &self.stats));
    }
}

/// Of all queues of an export.
#[derive(Default)]
pub struct WaitingRequests {
    count: AtomicU64,
    no_space: AtomicBool,
    late: AtomicU64,
    queues: Mutex<Vec<QueueAddress>>,
}

impl WaitingRequests {
    /// Requests that wait after an error.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// How many have taken longer than they may, since the export was made.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }

    /// How the disk does.
    #[must_use]
    pub fn status(&self) -> IoStatus {
        match (self.count(), self.no_space.load(Ordering::Relaxed)) {
            (0, _) => IoStatus::Ok,
            (_, true) => IoStatus::NoSpace,
            (_, false) => IoStatus::Failed,
        }
    }

    /// Requests that wait at this moment are resumed, some time after this returns.
    pub fn resume(&self, how: Resume) {
        self.send(|_| true, || DeviceCommand::Resume(how));
    }

    /// Each queue with something in flight looks whether it has requests that were taken before `until`, in ticks, and not
    /// before `after`.
    pub fn look_for_late(&self, after: u64, until: u64) {
        let busy = |stats: &QueueStats| stats.in_flight().get() > 0;
        self.send(busy, || DeviceCommand::ReportLate(after, until));
    }

    fn send(&self, is_meant: impl Fn(&QueueStats) -> bool, command: impl Fn() -> DeviceCommand) {
        for queue in self.queues().iter().filter(|queue| is_meant(&queue.stats)) {
            // An iothread that is gone has taken the queue with it.
            let _ = queue.remote.send(Message::Device(queue.place, command()));
        }
    }

    pub(crate) fn found_late(&self, requests: u32) {
        self.late.fetch_add(requests.into(), Ordering::Relaxed);
    }

    pub(crate) fn more(&self, requests: u32, errno: Errno) {
        self.no_space
            .store(errno == Errno::NOSPC, Ordering::Relaxed);
        self.count.fetch_add(requests.into(), Ordering::Relaxed);
    }

    pub(crate) fn less(&self, requests: u32) {
        self.count.fetch_sub(requests.into(), Ordering::Relaxed);
    }

    fn queues(&self) -> MutexGuard<'_, Vec<QueueAddress>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
