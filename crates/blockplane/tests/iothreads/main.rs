//! One disk on several iothreads, seen from its guest and from the kernel.
//!
//! - `mapping`: each queue is served by its iothread and by no other, in every way to say so.
//! - `settings`: what is said of an iothread arrives where it works.
//! - `write_cache`: what drivers that cannot flush find stable.
//! - `together`: what queues on different iothreads owe each other: data, and standing still alone.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod mapping;
mod settings;
mod together;
mod write_cache;

use test_support::{guest, process};
