//! The vhost-user transport: sockets, memory maps, queue start and stop.
//!
//! A [`Server`] listens on one Unix socket, on a thread of its own, and serves one front-end after
//! the other. The messages' wire format is the `vhost` crate's; what they do to memory and queues
//! stands here. What device sits behind is a [`Target`], and is not known here.
//!
//! A front-end may send anything. What is wrong costs it its connection and nobody else anything:
//! a message that never ends blocks only the thread of its own socket.

mod backend_channel;
mod connection;
mod dirty_log;
mod front_ends;
mod hand_over;
mod inflight;
mod memory;
mod message;
mod server;
mod take_over;
mod target;
mod vring;

pub use front_ends::FrontEnds;
pub use hand_over::{HandedOver, Parked};
pub use message::Message;
pub use server::Server;
pub use take_over::TakenOver;
pub use target::{StartedQueue, Target};
