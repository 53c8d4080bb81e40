//! Linux AIO engine: requests go to the kernel by `io_submit(2)`, and completions are read from its ring in user space.
//!
//! | file | mechanism |
//! |---|---|
//! | `abi` | the kernel's structures and numbers |
//! | `kernel` | the system calls, behind the interface [`AioKernel`] |
//! | `ring` | the completion ring that the kernel shares with us |
//! | `completion_source` | the choice of ring or system call for completions |
//! | `request` | one request: its control block, and its rest after a short transfer |
//! | `synchronous` | detection of files whose requests complete within io_submit(2) |
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
