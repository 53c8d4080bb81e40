//! The clock of a run, which all iothreads of its daemon share. It stands still but for what is simulated.

use block::simulated_clock;

/// The first moment of a run: not 0, which some code takes for "never".
const START_NS: u64 = 1_000_000;

/// A run begins.
pub fn begin() {
    simulated_clock::set_ns(START_NS);
}

/// The present moment, nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    simulated_clock::now_ns().unwrap_or(START_NS)
}

/// Time passes.
pub fn advance(ns: u64) {
    simulated_clock::set_ns(now_ns() + ns);
}
