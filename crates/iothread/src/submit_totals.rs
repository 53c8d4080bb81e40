//! Counters of requests that an iothread submitted to the kernel, and of the system calls for that.

use block::{IoContext, SubmitCounts};
use telemetry::counters::SingleWriterU64;

/// Counters as of the last submit phase, written by the iothread and read by any thread. On cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct SubmitTotals {
    /// Submitted requests, including continuations of short transfers. Requests that a disk completes within the call are not counted.
    pub requests: SingleWriterU64,
    /// System calls that submitted them.
    pub calls: SingleWriterU64,
    /// Most requests in one call.
    pub largest_batch: SingleWriterU64,
}

impl SubmitTotals {
    /// Updates the counters from the engines.
    #[inline]
    pub(crate) fn update(&self, io: &IoContext) {
        let SubmitCounts {
            requests,
            calls,
            largest_batch,
        } = io.submit_counts();
        if self.calls.get() != calls {
            self.calls.set(calls);
            self.requests.set(requests);
            self.largest_batch.set(largest_batch);
        }
    }
}
