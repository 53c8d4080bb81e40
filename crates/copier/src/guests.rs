//! The requests of guests beside the copier: how many have ended, and how long they took.

use std::sync::{Arc, Mutex, PoisonError};

use telemetry::queue::{QueueStats, RequestKind};

/// The statistics of the queues by which guests use the disk that is copied. Other threads replace them when guests come and go.
#[derive(Default)]
pub struct GuestQueues(Mutex<Vec<Arc<QueueStats>>>);

/// Requests of guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestRequests {
    /// Those that have ended, and the sum of their latencies in ticks.
    pub ended: u64,
    pub ticks: u64,
    /// Those of them that copied something themselves.
    pub copying: u64,
    pub copying_ticks: u64,
    pub in_flight: u64,
}

impl GuestQueues {
    /// Replaces the queues.
    pub fn set(&self, queues: Vec<Arc<QueueStats>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// The reads and writes so far of all queues, of which some (so many, which took so many ticks) had to copy. Flushes do not
    /// count: they take as long as the disk's cache is full, with or without a copier.
    pub(super) fn requests(&self, (copying, copying_ticks): (u64, u64)) -> GuestRequests {
        let mut sum = GuestRequests {
            copying,
            copying_ticks,
            ..GuestRequests::default()
        };
        for queue in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            for kind in [RequestKind::Read, RequestKind::Write] {
                let kind = queue.of_kind(kind);
                sum.ended += kind.latency.total();
                sum.ticks += kind.ticks.get();
            }
            sum.in_flight += queue.in_flight().get();
        }
        sum
    }
}

impl GuestRequests {
    /// Those since an earlier moment. Queues that are gone since would make it negative: they count as nothing.
    pub fn since(self, earlier: Self) -> Self {
        GuestRequests {
            ended: self.ended.saturating_sub(earlier.ended),
            ticks: self.ticks.saturating_sub(earlier.ticks),
            copying: self.copying.saturating_sub(earlier.copying),
            copying_ticks: self.copying_ticks.saturating_sub(earlier.copying_ticks),
            in_flight: self.in_flight,
        }
    }

    /// Those that have ended without copying anything.
    pub fn plain(self) -> u64 {
        self.ended.saturating_sub(self.copying)
    }

    /// Their mean latency, in ticks.
    pub fn mean_ticks(self) -> Option<u64> {
        let ticks = self.ticks.saturating_sub(self.copying_ticks);
        ticks.checked_div(self.plain()).filter(|mean| *mean > 0)
    }
}
