//! Counts of requests and system calls with which engines have submitted to the kernel, also engines that ended.

use crate::io::{LinuxAio, Uring};

/// Counts of submissions, summed over engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubmitCounts {
    /// Requests that the kernel took; one that is resumed after a short transfer counts again. Transfers that the engine
    /// carried out itself do not count.
    pub requests: u64,
    /// System calls that submitted something, or tried to.
    pub calls: u64,
    /// Most requests in one call.
    pub largest_batch: u64,
}

impl SubmitCounts {
    /// Adds the counts of the current engines.
    #[inline]
    pub(crate) fn plus_engines(self, aio: Option<&LinuxAio>, ring: Option<&Uring>) -> Self {
        let aio = aio.map(LinuxAio::stats).unwrap_or_default();
        let ring = ring.map(Uring::stats).unwrap_or_default();
        let largest_batch = aio.largest_batch.max(ring.largest_batch);
        SubmitCounts {
            requests: self.requests + aio.submitted + ring.submitted,
            calls: self.calls + aio.submit_calls + ring.submit_calls,
            largest_batch: self.largest_batch.max(largest_batch),
        }
    }
}
