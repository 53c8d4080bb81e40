//! Counters of an event loop: iterations, sleeps, and polls with and without success.
//!
//! Each event is counted once, by its result; readers make sums.

use telemetry::counters::SingleWriterU64;

/// Counted by the loop's thread, read by any. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopTotals {
    pub(crate) sleeps: SingleWriterU64,
    /// Iterations that were followed by another at once.
    pub(crate) busy_iterations: SingleWriterU64,
    pub(crate) poll_hits: SingleWriterU64,
    pub(crate) poll_misses: SingleWriterU64,
    pub(crate) poll_time_ns: SingleWriterU64,
}

impl LoopTotals {
    /// Number of iterations that have ended, by blocking or by the next one.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.sleeps.get() + self.busy_iterations.get()
    }

    /// Number of times that it blocked.
    #[must_use]
    pub fn sleeps(&self) -> u64 {
        self.sleeps.get()
    }

    /// Number of times that it polled.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.poll_hits.get() + self.poll_misses.get()
    }

    /// Number of times that polling found work.
    #[must_use]
    pub fn poll_hits(&self) -> u64 {
        self.poll_hits.get()
    }

    /// Time spent polling, in nanoseconds. Work that is found by the first polls, before the clock is read,
    /// adds nothing.
    #[must_use]
    pub fn poll_time_ns(&self) -> u64 {
        self.poll_time_ns.get()
    }

    /// Counts a polling that has ended.
    #[inline(always)]
    pub(crate) fn count_poll(&self, found: bool) {
        match found {
            true => self.poll_hits.add(1),
            false => self.poll_misses.add(1),
        }
    }
}
