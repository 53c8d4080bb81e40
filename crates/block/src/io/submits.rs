//! Counts of what engines have submitted to the kernel, engines that are gone included.

use crate::io::{LinuxAio, Uring};

/// Sums over engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submits {
    /// Requests that the kernel took, those that go on after a short transfer again. What was carried out within
    /// the call is not among them.
    pub requests: u64,
    /// Calls that handed something over, or tried to.
    pub calls: u64,
    /// Most requests in one of them.
    pub largest_batch: u64,
}

impl Submits {
    /// With those of the engines that are there.
    #[inline]
    pub(crate) fn and(self, aio: Option<&LinuxAio>, ring: Option<&Uring>) -> Self {
        let aio = aio.map(LinuxAio::stats).unwrap_or_default();
        let ring = ring.map(Uring::stats).unwrap_or_default();
        let largest_batch = aio.largest_batch.max(ring.largest_batch);
        Submits {
            requests: self.requests + aio.submitted + ring.submitted,
            calls: self.calls + aio.submit_calls + ring.submit_calls,
            largest_batch: self.largest_batch.max(largest_batch),
        }
    }
}
