//! The block layer's clock: the monotonic clock in nanoseconds, as the loop's timers use it.

/// Nanoseconds on the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
