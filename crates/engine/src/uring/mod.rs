//! Modules of the io_uring engine, which writes requests into a ring that the kernel reads, and reads completions from another.
//!
//! | file | mechanism |
//! |---|---|
//! | `settings` | settings and counters of an engine |
//! | `error` | why a ring cannot be made, with the remedy |
//! | `setup` | a ring with the best features of this kernel |
//! | `ring` | the ring, behind the interface [`Ring`] |
//! | `request` | one request: its submission entry, and its rest after a short transfer |
//! | `buffers` | registered buffers, and their places in the ring's table |
//! | `engine` | [`Uring`]: the queue, the batch limit, the reap pass |
//!
//! Beside what Linux AIO does it carries discards and write-zeroes, works through the page cache, and never blocks in a
//! submission: a request that would block goes to a worker thread of the kernel.

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
