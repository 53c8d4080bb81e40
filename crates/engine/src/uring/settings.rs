//! Settings and counters of an io_uring engine.

use crate::aio::DEFAULT_MAX_EVENTS;
use crate::pool::DEFAULT_MAX_THREADS;

/// Most requests of one ring: the kernel's own limit. Larger settings are reduced to it.
pub const MAX_RING_EVENTS: u32 = 32_768;

/// Settings of an io_uring engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringSettings {
    /// Requests in flight and pending together, 1 or more, reduced to [`MAX_RING_EVENTS`].
    pub max_events: u32,
    /// Most requests in one io_uring_enter(2); 0 means [`DEFAULT_MAX_BATCH`](crate::DEFAULT_MAX_BATCH).
    pub max_batch: u32,
    /// Most worker threads that the kernel starts for what would block, 1 or more.
    pub max_workers: u32,
}

impl Default for UringSettings {
    fn default() -> Self {
        Self {
            max_events: DEFAULT_MAX_EVENTS,
            max_batch: 0,
            max_workers: DEFAULT_MAX_THREADS,
        }
    }
}

/// Counts of an engine since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringStats {
    /// Requests that the kernel took; a resumed or retried request counts again.
    pub submitted: u64,
    /// Calls of io_uring_enter(2) that submitted something, or tried to.
    pub submit_calls: u64,
    /// Requests in the largest of them.
    pub largest_batch: u64,
    /// Most requests in the next call.
    pub max_batch: u32,
    /// Submissions that the kernel refused temporarily.
    pub refused: u64,
    /// Calls of io_uring_enter(2) that only let the kernel flush completions.
    pub getevents_calls: u64,
    /// Short transfers that were resumed.
    pub resumed: u64,
    /// Requests that completed with `EAGAIN` or `EINTR` and were submitted again.
    pub retried: u64,
    /// Requests with registered buffers.
    pub fixed: u64,
    /// Completions that were reaped.
    pub completed: u64,
}
