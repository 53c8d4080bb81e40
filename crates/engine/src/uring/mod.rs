//! io_uring: requests written into a ring that the kernel reads, completions read from another.
//!
//! | file | mechanism |
//! |---|---|
//! | `settings` | what an engine can be told, and what it counts |
//! | `error` | why there is none, in words that name the remedy |
//! | `setup` | a ring with as much as this kernel has |
//! | `ring` | the ring, behind the seam [`Ring`] |
//! | `request` | one request: from [`Io`](crate::Io) to a submission entry, and on after a short transfer |
//! | `buffers` | memory that the ring knows, and in which place of its table |
//! | `engine` | [`Uring`]: the queue, the batch limit, the reap pass |
//!
//! Beside what Linux AIO does it carries discards and zeroes, works through the page cache, and
//! never blocks in a submission: what would block goes to a worker thread of the kernel's.

mod buffers;
mod engine;
mod error;
mod request;
mod ring;
mod settings;
mod setup;

pub use buffers::BufferError;
pub use engine::Uring;
pub use error::UringError;
pub use request::File;
pub use ring::{KernelRing, Ring};
pub use settings::{MAX_RING_EVENTS, UringSettings, UringStats};
