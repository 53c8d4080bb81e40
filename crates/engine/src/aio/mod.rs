//! Linux AIO: `io_setup(2)`, `io_submit(2)`, and completions read in user space.
//!
//! | file | mechanism |
//! |---|---|
//! | `abi` | the kernel's structures and numbers |
//! | `kernel` | the system calls, behind the seam [`AioKernel`] |
//! | `ring` | the completion ring that the kernel shares with us |
//! | `source` | which of ring and system call completions come from |
//! | `request` | one request: from [`Io`](crate::Io) to a kernel control block, and on after a short transfer |
//! | `in_call` | which disks answer within io_submit(2), so that a read or write system call does the same |
//! | `linux_aio` | [`LinuxAio`]: the queue, the reap pass |
//! | `linux_aio/submit` | the submit pass, the batch limit |

pub mod abi;
mod completion_source;
mod error;
mod kernel;
mod linux_aio;
mod request;
mod ring;
mod settings;
mod synchronous;

pub use error::AioError;
pub use kernel::{AioKernel, ContextId, Kernel};
pub use linux_aio::LinuxAio;
pub use settings::{AioSettings, AioStats, DEFAULT_MAX_EVENTS, MAX_EVENTS_LIMIT};
