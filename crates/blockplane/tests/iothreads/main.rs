//! One disk on several iothreads, seen from its guest and from the kernel.
//!
//! - `mapping`: each queue is served by its iothread and by no other, in every way to say so.
//! - `settings`: what is said of an iothread arrives where it works.
//! - `together`: what queues on different iothreads owe each other: data, and standing still alone.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

#[allow(dead_code, reason = "shared with another suite")]
mod guest;
mod mapping;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../cli/process.rs"]
mod process;
mod settings;
mod together;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../hostile/wire.rs"]
mod wire;

/// Where the connection of the other suite has its patience from.
mod daemon {
    pub use crate::process::STUCK_AFTER;
}
