//! The backends of an iothread: Linux AIO, io_uring and a worker pool, which submit I/O to the kernel and reap its completions.
//!
//! An engine belongs to one iothread, and is built around the two phases in which that thread calls the kernel: *reap*
//! (phase 1, completions are taken) and *submit* (phase 5, pending requests are submitted). [`LinuxAio`] carries reads,
//! writes and flushes that the kernel does asynchronously; [`Uring`] carries those, and others that the kernel does in
//! threads of its own; [`Pool`] carries what would block.
//!
//! The crate knows descriptors, offsets and buffers. It knows nothing of block nodes, guests or event loops: it provides a
//! descriptor to wait on and a check to poll, and never waits itself.

pub mod aio;
mod backend;
mod batch;
mod fair_share;
mod io;
mod iov;
#[cfg(test)]
mod model_tests;
pub mod pool;
mod slots;
pub mod submit_tracepoints;
#[cfg(test)]
mod testing;
mod transfer;
pub mod uring;

pub use aio::{AioError, AioKernel, AioSettings, AioStats, Kernel, LinuxAio};
pub use backend::IoBackend;
pub use batch::{DEFAULT_MAX_BATCH, FIRST_BATCH};
pub use fair_share::fair_room;
pub use io::{Full, Op, Request};
pub use iov::{skip_bytes, zero_fill};
pub use pool::{Job, Pool, PoolError, PoolSettings, RequestJob};
/// An error number of the kernel, see errno(3).
pub use rustix::io::Errno;
pub use uring::{Uring, UringError, UringSettings, UringStats};

/// The completion of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token of the request, which its submitter has chosen.
    pub token: u64,
    /// Success means that the whole request was done; there is no partial success.
    pub result: Result<(), Errno>,
}
