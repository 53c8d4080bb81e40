//! A vhost-user front-end and virtio-blk driver, as light as it can be.
//!
//! What a virtual machine's monitor and its guest do together, without a guest: [`SharedMemory`]
//! is the guest's memory, [`Layout`] says where a queue's rings and buffers are in it,
//! [`Session`] tells the server of both and starts the queues, [`DriverRing`] is the driver's side
//! of one queue, [`Requests`] are its requests with all descriptors written beforehand, and
//! [`Doorbells`] are the descriptors with which both sides call each other.
//!
//! It trusts the server: what it checks are requests that failed and answers that make no sense.
//! It does split rings, reads, writes and flushes, and takes of the optional features what the
//! server has.

mod connection;
mod doorbells;
mod layout;
mod memory;
mod requests;
mod ring;
mod session;
mod shape;
mod wire;

pub use connection::Connection;
pub use doorbells::{Doorbells, Waiter, Woken};
pub use layout::{Layout, QueuePlace};
pub use memory::SharedMemory;
pub use requests::{Kind, Requests, SECTOR_BYTES};
pub use ring::DriverRing;
pub use session::{Agreed, Session};
pub use shape::{Buffers, Shape};
