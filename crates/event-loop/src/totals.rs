//! What a loop has done so far.

use counters::Counter;

/// Counted by the loop's thread, read by any. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopTotals {
    /// Iterations begun.
    pub iterations: Counter,
    /// How often it blocked.
    pub sleeps: Counter,
    /// How often it polled before it blocked.
    pub polls: Counter,
    /// How often that found work.
    pub poll_hits: Counter,
    /// How long it polled, in nanoseconds. What is found within the first looks, before the clock is read,
    /// adds nothing.
    pub poll_time_ns: Counter,
}
