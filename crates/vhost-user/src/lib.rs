//! The vhost-user transport: sockets, memory maps, queue start and stop.
//!
//! A [`Server`] listens on one Unix socket, and serves one front-end after the other. The [`ControlThreads`]
//! handle the messages of the front-ends of all servers. Their wire format is the `vhost` crate's; what they
//! do to memory and queues is implemented here. The device behind a socket is a [`VirtioDevice`].
//!
//! A front-end may send anything. A bad message costs it its connection and affects no other front-end:
//! a message that never ends blocks one thread, and another one serves the others.

mod backend_channel;
mod connection;
mod device;
mod dirty_log;
mod inflight;
mod memory;
mod message;
mod server;
mod vring;

pub use device::{StartedQueue, VirtioDevice};
pub use message::Message;
pub use server::{
    ConnectionHandover, ControlThreads, FrontEndHandle, PausedServer, RestoredConnection, Server,
};
