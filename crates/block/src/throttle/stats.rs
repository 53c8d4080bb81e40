//! Counts of the waits of a throttled node's requests, for monitors and metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::limits::LimitKind;

/// Upper bounds of the classes of waiting times, in nanoseconds; a last class has the longer ones.
pub const WAIT_BOUNDS_NS: [u64; 8] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
    100_000_000_000,
];

/// Counts of a throttled node, since it was added. Requests that pass at once are in none of them.
#[derive(Debug, Default)]
pub struct ThrottleStats {
    waiting: AtomicU64,
    waited: [AtomicU64; WAIT_BOUNDS_NS.len() + 1],
    waited_ns: AtomicU64,
    limit_hits: [AtomicU64; LimitKind::ALL.len()],
}

impl ThrottleStats {
    /// Requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Requests that have waited, by the time that they waited: see [`WAIT_BOUNDS_NS`].
    #[must_use]
    pub fn waited(&self) -> [u64; WAIT_BOUNDS_NS.len() + 1] {
        self.waited
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// The time that they waited, in nanoseconds, added up.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// How often a limit made the first of its requests wait.
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
        let class = WAIT_BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.waited[class].fetch_add(1, Ordering::Relaxed);
        self.waited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Counts that a limit makes requests wait.
    pub(super) fn count_limit_hit(&self, kind: LimitKind) {
        self.limit_hits[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}
