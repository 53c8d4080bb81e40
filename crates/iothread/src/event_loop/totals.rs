//! Counters of a loop.
//!
//! Each event is counted once, by what it ended in; sums are for who reads.

use telemetry::counters::Counter;

/// Counted by the loop's thread, read by any. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopTotals {
    pub(crate) sleeps: Counter,
    /// Iterations that another followed at once.
    pub(crate) went_on: Counter,
    pub(crate) poll_hits: Counter,
    pub(crate) poll_misses: Counter,
    pub(crate) poll_time_ns: Counter,
}

impl LoopTotals {
    /// Iterations that have ended: where they block, or where the next one begins.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.sleeps.get() + self.went_on.get()
    }

    /// How often it blocked.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps.get()
    }

    /// How often it polled before it blocked.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.poll_hits.get() + self.poll_misses.get()
    }

    /// How often that found work.
    #[must_use]
    pub fn poll_hits(&self) -> u64 {
        self.poll_hits.get()
    }

    /// How long it polled, in nanoseconds. What is found within the first looks, before the clock is read,
    /// adds nothing.
    #[must_use]
    pub fn poll_time_ns(&self) -> u64 {
        self.poll_time_ns.get()
    }

    /// A polling has ended.
    #[inline(always)]
    pub(crate) fn polled(&self, found: bool) {
        match found {
            true => self.poll_hits.add(1),
            false => self.poll_misses.add(1),
        }
    }
}
