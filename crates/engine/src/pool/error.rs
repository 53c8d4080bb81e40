//! Errors of creating a worker pool, or of changing its limits.

use rustix::io::Errno;

use super::MAX_THREADS_LIMIT;

/// Why a pool cannot be made, or its limits changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The maximum is 0 or too large.
    #[error("thread-pool-max is {max_threads}: must be in range [1, {MAX_THREADS_LIMIT}]")]
    MaxThreads {
        /// The requested maximum.
        max_threads: u32,
    },
    /// The minimum is over the maximum.
    #[error("thread-pool-min is {min_threads}, over thread-pool-max = {max_threads}")]
    MinOverMax {
        /// The requested minimum.
        min_threads: u32,
        /// The requested maximum.
        max_threads: u32,
    },
    /// A thread of the minimum could not be started.
    #[error("no thread for the worker pool: {errno} (limits: RLIMIT_NPROC, pids.max, memory)")]
    Start {
        /// The kernel's error.
        errno: Errno,
    },
}
