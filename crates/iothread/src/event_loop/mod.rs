//! `IoThread`: one thread, one loop, five phases.
//!
//! What runs on the thread is a [`Runner`]; the loop knows nothing of storage. It brings
//! - [`handlers`], registered descriptors in a slab; the poller's cookie is slot and generation,
//!   so adding, deleting and dispatching one costs the same whether 10 or 100,000 are registered;
//! - [`poller`], the seam to the kernel (`epoll`), small enough to put a fake under it;
//! - [`timers`], deadlines;
//! - [`wake`] and [`mailbox`], how other threads reach the loop, without a syscall while it is awake;
//! - [`poll_predictor`], how long it is worth polling for a source, and [`budget`], how much in all;
//! - [`iothread`], the iteration itself, and [`thread`], the thread that it runs on.

pub mod budget;
mod context;
pub mod handlers;
pub mod iothread;
pub mod mailbox;
pub mod poll_predictor;
pub mod poller;
pub mod testing;
pub mod thread;
pub mod timers;
mod totals;
mod tracepoints;
pub mod wake;

pub use context::Context;
pub use handlers::HandlerId;
pub use iothread::{IoThread, Runner};
pub use mailbox::{Remote, Stopped};
pub use poll_predictor::{Idle, PollPredictor, PollSettings, Polled, Turn};
pub use poller::{Epoll, Interest, Poller, Readiness};
pub use thread::{SpawnError, ThreadHandle};
pub use timers::TimerId;
pub use totals::LoopTotals;
