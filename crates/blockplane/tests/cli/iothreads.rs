//! One disk on several iothreads, seen from its guest and from the kernel.
//!
//! - `mapping`: each queue is served by its iothread only, for every form of the option.
//! - `settings`: settings of an iothread take effect.
//! - `write_cache`: writes are stable for drivers that cannot flush.
//! - `concurrent_queues`: queues on different iothreads share data and do not block each other.

mod concurrent_queues;
mod mapping;
mod settings;
mod write_cache;
