//! The event loop of an iothread, without anything about storage: epoll, adaptive polling, timers, messages from other threads
//! and a runner that is called for the five phases of each iteration.
//!
//! An [`EventLoop`] calls its [`Runner`]. Its parts:
//! - [`handlers`]: registered descriptors in a slab. The poller's cookie is slot and generation, so adding, deleting and
//!   dispatching one costs the same whether 10 or 100,000 are registered.
//! - [`poller`]: the interface to the kernel (`epoll`), which tests replace by a fake.
//! - [`timers`]: a heap of deadlines.
//! - [`wake`] and [`mailbox`]: messages from other threads, without a system call while the loop is awake.
//! - [`poll_predictor`]: how long polling for a source pays; [`budget`]: the limit of polling in all.
//! - [`iteration`]: the loop itself; [`thread`]: the thread that it runs on.

mod context;
pub mod handlers;
pub mod iteration;
pub mod mailbox;
pub mod poll_budget;
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
pub use iteration::{EventLoop, Runner};
pub use mailbox::{Remote, StoppedError};
pub use poll_predictor::{AwaitedSide, IdleEnd, PollOutcome, PollPredictor, PollSettings};
pub use poller::{Epoll, Interest, Poller, Readiness};
pub use thread::{EventLoopThread, SpawnError};
pub use timers::TimerId;
pub use totals::LoopTotals;
