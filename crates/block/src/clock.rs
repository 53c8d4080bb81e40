//! The block layer's clock: the monotonic clock in nanoseconds, as the loop's timers use it.

/// Nanoseconds on the monotonic clock, or on the simulator's.
#[must_use]
pub fn now_ns() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(now_ns) = simulated::now_ns() {
        return now_ns;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The simulator's clock, one for each thread.
#[cfg(feature = "simulation")]
pub mod simulated {
    use std::cell::Cell;

    thread_local! {
        static NOW_NS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Nanoseconds on the simulator's clock, if it is set.
    #[must_use]
    pub fn now_ns() -> Option<u64> {
        NOW_NS.get()
    }

    /// Sets the clock of this thread.
    pub fn set_ns(now_ns: u64) {
        NOW_NS.set(Some(now_ns));
    }
}
