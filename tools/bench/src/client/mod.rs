//! A lightweight vhost-user front-end and virtio-blk driver.
//!
//! What a virtual machine's monitor and its guest do together, without a guest: [`SharedMemory`] is the guest's memory, [`Layout`] says
//! where a queue's rings and buffers are in it, [`Session`] tells the server of both and starts the queues, [`DriverRing`] is the driver's
//! side of one queue, [`Requests`] are its requests with all descriptors written beforehand, and [`Doorbells`] are the descriptors with
//! which both sides call each other.
//!
//! [`Commands`] and [`Queue`] are what a load needs of requests and rings: others can be put in their place.
//!
//! It trusts the server: what it checks are requests that failed and answers that make no sense. It does split rings, reads, writes and
//! flushes, and takes of the optional features what the server has.

mod commands;
mod doorbells;
mod layout;
mod memory;
mod queue;
mod requests;
mod ring;
mod session;

pub use commands::{Commands, Kind};
pub use doorbells::{Doorbells, Waiter, WakeReason};
pub use layout::{Layout, QueuePlace};
pub use memory::SharedMemory;
pub use queue::Queue;
pub use requests::{
    Buffers, CHAIN, DESC_WORDS, NEXT, Requests, SECTOR_BYTES, WRITE, describe, no_request,
};
pub use ring::DriverRing;
pub use session::{Session, SessionParameters};
