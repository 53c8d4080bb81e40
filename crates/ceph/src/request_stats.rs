//! Statistics of an image's requests to librbd: a set for each queue, which its thread writes and any thread reads.
//!
//! librados has no function that returns its own performance counters: only its admin socket does.

use std::sync::{Arc, Mutex, PoisonError};

use engine::Op;
use telemetry::counters::{SingleWriterU64, TickClock};
use telemetry::queue::{QueueStats, RequestKind};

/// Statistics of the requests of one queue.
///
/// Latencies are from the call of librbd to its callback. Requests that never reach librbd are not counted.
pub(crate) struct QueueRequestStats {
    stats: QueueStats,
    /// When the oldest request was sent after a time without requests, in ticks.
    busy_since: SingleWriterU64,
    /// The last callback, in ticks; 0: none yet.
    last_answer: SingleWriterU64,
}

impl QueueRequestStats {
    fn new() -> Self {
        QueueRequestStats {
            stats: QueueStats::new(),
            busy_since: SingleWriterU64::default(),
            last_answer: SingleWriterU64::default(),
        }
    }

    /// Counts a request that is sent to librbd `now`.
    pub(crate) fn count_sent(&self, now: u64) {
        if self.stats.in_flight().get() == 0 {
            self.busy_since.set(now);
        }
        self.stats.in_flight().add(1);
    }

    /// Counts a request that was sent and completed at these times; `bytes`: those that it moved, unless it failed.
    pub(crate) fn count_answered(&self, op: Op, sent: u64, completed: u64, bytes: Option<u64>) {
        self.stats.in_flight().subtract(1);
        // Callbacks of several threads are not in order.
        self.last_answer.raise_to(completed);
        let kind = self.stats.of_kind(kind_of(op));
        match bytes {
            Some(bytes) => kind.add_succeeded(1, bytes, completed.saturating_sub(sent)),
            None => kind.failed.add(1),
        }
    }
}

/// The kind under which a request is counted.
fn kind_of(op: Op) -> RequestKind {
    match op {
        Op::Read => RequestKind::Read,
        Op::Write | Op::WriteZeroes { .. } => RequestKind::Write,
        Op::Flush => RequestKind::Flush,
        Op::Discard => RequestKind::Unmap,
    }
}

/// Statistics of all queues of an image. They do not keep the image open.
#[derive(Default)]
pub struct RequestStats {
    /// Also those of queues that are gone: figures never decrease.
    queues: Mutex<Vec<Arc<QueueRequestStats>>>,
}

impl RequestStats {
    /// The statistics for a new queue: those of a queue that is gone, which it continues, or else new ones.
    pub(crate) fn reuse_or_add_queue_stats(&self) -> Arc<QueueRequestStats> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = queues.iter().find(|queue| Arc::strong_count(queue) == 1) {
            free.stats.in_flight().set(0);
            return Arc::clone(free);
        }
        let new = Arc::new(QueueRequestStats::new());
        queues.push(Arc::clone(&new));
        new
    }

    /// The statistics of each queue: requests in flight at librbd, and by kind what succeeded and failed, with latencies.
    #[must_use]
    pub fn queues(&self) -> Vec<QueueStats> {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.iter().map(|queue| queue.stats.clone()).collect()
    }

    /// Requests in flight at librbd.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.activity().in_flight
    }

    pub(crate) fn activity(&self) -> Activity {
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let all = queues.iter().map(|queue| {
            let in_flight = queue.stats.in_flight().get();
            Activity {
                in_flight,
                busy_since: (in_flight > 0).then(|| queue.busy_since.get()),
                last_answer: queue.last_answer.get(),
            }
        });
        Activity::of_all(all)
    }
}

/// Requests in flight, and the times that tell whether the cluster answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    pub(crate) in_flight: u64,
    /// Since when there have always been requests in flight, in ticks.
    busy_since: Option<u64>,
    /// In ticks; 0: none yet.
    last_answer: u64,
}

impl Activity {
    /// Several together.
    pub(crate) fn of_all(all: impl Iterator<Item = Activity>) -> Activity {
        all.fold(Activity::default(), |a, b| Activity {
            in_flight: a.in_flight + b.in_flight,
            busy_since: a.busy_since.into_iter().chain(b.busy_since).min(),
            last_answer: a.last_answer.max(b.last_answer),
        })
    }

    /// How long nothing was answered although there were requests in flight, in ticks; 0 without requests.
    pub(crate) fn silent_ticks(&self, now: u64) -> u64 {
        self.busy_since
            .map_or(0, |since| now.saturating_sub(since.max(self.last_answer)))
    }
}

/// The current time of these statistics.
pub(crate) fn now_in_ticks() -> u64 {
    TickClock::of_process().now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_and_a_new_queue_continues_the_counts_of_a_dropped_one() {
        let stats = RequestStats::default();
        let [first, second] = [(); 2].map(|()| stats.reuse_or_add_queue_stats());
        first.count_sent(1000);
        first.count_answered(Op::Discard, 1000, 1400, None);
        let failed = || {
            let queues = stats.queues();
            let of_queue = |queue: &QueueStats| queue.of_kind(RequestKind::Unmap).failed.get();
            queues.iter().map(of_queue).collect::<Vec<_>>()
        };
        assert_eq!(failed(), [1, 0], "a queue in use is no other one's");
        drop(first);
        let third = stats.reuse_or_add_queue_stats();
        third.count_sent(2000);
        third.count_answered(Op::Discard, 2000, 2400, None);
        assert_eq!(failed(), [2, 0]);
        drop(second);
    }

    #[test]
    fn silence_begins_with_the_oldest_request_or_the_last_answer_of_any_queue() {
        let [busy, idle] = [RequestStats::default(), RequestStats::default()];
        let [a, b] = [&busy, &idle].map(RequestStats::reuse_or_add_queue_stats);
        let silent = |now| {
            let activities = [&busy, &idle].map(RequestStats::activity);
            Activity::of_all(activities.into_iter()).silent_ticks(now)
        };
        assert_eq!(silent(5000), 0, "nothing was sent");
        a.count_sent(1000);
        assert_eq!(silent(5000), 4000);
        b.count_sent(2000);
        b.count_answered(Op::Flush, 2000, 3000, Some(0));
        assert_eq!(silent(5000), 2000, "another image was answered");
        a.count_answered(Op::Read, 1000, 4000, Some(512));
        assert_eq!(silent(9000), 0, "nothing is in flight");
        a.count_sent(8000);
        assert_eq!(silent(9000), 1000);
    }
}
