//! Counts of what an iothread submits to the kernel.

use block::{IoContext, Submits};
use telemetry::counters::Counter;

/// Kept by the iothread, read by any thread: as of the last submit phase. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SubmitTotals {
    /// Requests that were submitted, those that go on after a short transfer again. What a disk carries out
    /// within the call is not among them.
    pub requests: Counter,
    /// Calls that did it.
    pub calls: Counter,
    /// Most requests in one of them.
    pub largest_batch: Counter,
}

impl SubmitTotals {
    /// As the engines have it now.
    #[inline]
    pub(crate) fn update(&self, io: &IoContext) {
        let Submits {
            requests,
            calls,
            largest_batch,
        } = io.submits();
        if self.calls.get() != calls {
            self.calls.set(calls);
            self.requests.set(requests);
            self.largest_batch.set(largest_batch);
        }
    }
}
