//! Linux AIO: `io_setup(2)`, `io_submit(2)`, and completions read in user space.
//!
//! | file | mechanism |
//! |---|---|
//! | `abi` | the kernel's structures and numbers |
//! | `kernel` | the system calls, behind the seam [`AioKernel`] |
//! | `ring` | the completion ring that the kernel shares with us |
//! | `source` | which of ring and system call completions come from |
//! | `iov` | walking a request's buffers: skip what is done, zero what lies past the end |
//! | `request` | one request: from [`Io`] to a kernel control block, and on after a short transfer |
//! | `slots` | the records of all requests, allocated once |
//! | `linux_aio` | [`LinuxAio`]: the queue, the batch limit, the reap pass |

pub mod abi;
mod error;
mod iov;
mod kernel;
mod linux_aio;
mod request;
mod ring;
mod settings;
mod slots;
mod source;

pub use error::{AioError, Full};
pub use kernel::{AioKernel, ContextId, Kernel};
pub use linux_aio::LinuxAio;
pub use request::{Io, Op};
pub use settings::{
    AioSettings, AioStats, DEFAULT_MAX_BATCH, DEFAULT_MAX_EVENTS, MAX_EVENTS_LIMIT,
};
