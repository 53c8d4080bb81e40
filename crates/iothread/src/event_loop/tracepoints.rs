//! Tracepoints of a loop without work: begin and end of polling, sleep and wake-up.

use telemetry::tracepoints::{poll_begin, poll_end, sleep, wake};

/// Fires when it begins to poll.
#[inline(always)]
pub(crate) fn poll_begin(window_ns: u64) {
    if poll_begin::enabled() {
        poll_begin::fire(window_ns);
    }
}

/// Fires when it has polled.
#[inline(always)]
pub(crate) fn poll_end(found: bool, spent_ns: u64) {
    if poll_end::enabled() {
        poll_end::fire(found.into(), spent_ns);
    }
}

/// Fires before it blocks.
#[inline(always)]
pub(crate) fn sleep(timeout_ns: Option<u64>) {
    if sleep::enabled() {
        let timeout_ns = timeout_ns.map_or(-1, |ns| i64::try_from(ns).unwrap_or(i64::MAX));
        sleep::fire(timeout_ns);
    }
}

/// Fires after it has blocked, until `events` descriptors were ready.
#[inline(always)]
pub(crate) fn wake(events: usize) {
    if wake::enabled() {
        wake::fire(events as u64);
    }
}
