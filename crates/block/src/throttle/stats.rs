//! Counts of the waits of a throttled node's requests, for monitors and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use telemetry::counters::SharedHistogram;

use super::limits::LimitKind;

/// Counts of a throttled node, since it was added. Requests that pass at once are in none of them.
#[derive(Debug, Default)]
pub struct ThrottleStats {
    waiting: AtomicU64,
    waits: SharedHistogram,
    waited_ns: AtomicU64,
    limit_hits: [AtomicU64; LimitKind::ALL.len()],
}

impl ThrottleStats {
    /// Requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Requests that have waited, by the time that they waited, in nanoseconds.
    #[must_use]
    pub fn waits(&self) -> &SharedHistogram {
        &self.waits
    }

    /// The time that they waited, in nanoseconds, added up.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// How often a look at the first waiting request of a queue found that it has to wait for this limit.
    #[must_use]
    pub fn limit_hits(&self, kind: LimitKind) -> u64 {
        self.limit_hits[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts a request that begins to wait.
    pub(super) fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has waited so long.
    pub(super) fn end_wait(&self, ns: u64) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waits.add_durations(ns, 1);
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts such a look.
    pub(super) fn count_limit_hit(&self, kind: LimitKind) {
        self.limit_hits[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}
