//! Linux AIO, io_uring and the worker pool: submit I/O to the kernel and reap its completions.
//!
//! An engine belongs to one `IoThread`, and everything here is built around the two phases in
//! which that thread meets the kernel: *reap* (phase 1, finished requests are taken) and *submit*
//! (phase 5, waiting requests are handed over). [`LinuxAio`] carries reads, writes and flushes
//! that the kernel can run by itself; [`Uring`] carries those, and what the kernel can do in threads of its
//! own; [`Pool`] carries whatever would block.
//!
//! The crate knows descriptors, offsets and buffers. It knows nothing of block nodes, guests or
//! event loops: it hands out a descriptor to wait on and a peek to poll, and never waits itself.

pub mod aio;
mod backend;
mod batch;
mod io;
mod iov;
#[cfg(test)]
mod model_test;
pub mod pool;
mod slots;
mod submit_tracepoints;
#[cfg(test)]
mod testing;
mod transfer;
pub mod uring;

pub use aio::{AioError, AioKernel, AioSettings, AioStats, Kernel, LinuxAio};
pub use backend::IoBackend;
pub use batch::{DEFAULT_MAX_BATCH, FIRST_BATCH};
pub use io::{Full, Op, Request};
pub use pool::{Job, Pool, PoolError, PoolSettings, RequestJob};
/// An error number of the kernel, see errno(3).
pub use rustix::io::Errno;
pub use uring::{Uring, UringError, UringSettings, UringStats};

/// What came of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The submitter's own name for the request, unchanged.
    pub token: u64,
    /// Success means that the whole request was done; there is no partial success.
    pub result: Result<(), Errno>,
}
