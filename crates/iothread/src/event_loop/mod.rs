//! `IoThread`: one thread, one loop, five phases.
//!
//! What runs on the thread is a [`Plane`]; the loop knows nothing of storage. It brings
//! - [`handlers`], registered descriptors in a slab; the poller's cookie is slot and generation,
//!   so adding, deleting and dispatching one costs the same whether 10 or 100,000 are registered;
//! - [`poller`], the seam to the kernel (`epoll`), small enough to put a fake under it;
//! - [`timers`], deadlines;
//! - [`wake`] and [`mailbox`], how other threads reach the loop, without a syscall while it is awake;
//! - [`pace`], how long it is worth polling for a source, and [`budget`], how much in all;
//! - [`iothread`], the iteration itself, and [`thread`], the thread that it runs on.

pub mod budget;
mod context;
pub mod handlers;
pub mod iothread;
pub mod mailbox;
pub mod pace;
pub mod poller;
pub mod testing;
pub mod thread;
pub mod timers;
mod totals;
mod traced;
pub mod wake;

pub use context::Context;
pub use handlers::HandlerId;
pub use iothread::{IoThread, Plane};
pub use mailbox::{Remote, Stopped};
pub use pace::{Idle, Pace, PollSettings, Polled, Turn};
pub use poller::{Epoll, Interest, Poller, Readiness};
pub use thread::{Running, SpawnError};
pub use timers::TimerId;
pub use totals::LoopTotals;
