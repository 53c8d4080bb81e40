//! Errors of making or changing a pool.

use rustix::io::Errno;

use super::MAX_THREADS_LIMIT;

/// Why a pool cannot be as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No thread at all, or too many.
    #[error("thread-pool-max is {max_threads}: must be in range [1, {MAX_THREADS_LIMIT}]")]
    MaxThreads {
        /// What was asked for.
        max_threads: u32,
    },
    /// The minimum is over the maximum.
    #[error("thread-pool-min is {min_threads}, over thread-pool-max = {max_threads}")]
    MinOverMax {
        /// What was asked for.
        min_threads: u32,
        /// What was asked for.
        max_threads: u32,
    },
    /// A thread of the minimum could not be started.
    #[error("no thread for the worker pool: {errno} (limits: RLIMIT_NPROC, pids.max, memory)")]
    Start {
        /// What the kernel said.
        errno: Errno,
    },
}
