//! Eventfds that front-ends pass, for kicks, calls, errors and interrupts. A front-end shares their counter and flags with
//! the daemon and may change both at any time.
//!
//! - [`check_eventfd_and_set_nonblocking`]: a descriptor that arrives is an eventfd, and no other file;
//! - [`Signaller`]: adds to the counter. A front-end can make that block once, for a tenth of a second;
//! - [`take_count`]: reads the counter and never blocks;
//! - [`start_guard`]: starts the thread that interrupts a write that blocks.

mod aio_signal;
mod call_count;
mod check;
mod guard;
mod signaller;

/// Replaced by loom's in the models of `interleavings`.
use std::sync;

pub use check::{NotAnEventFd, check_eventfd_and_set_nonblocking};
pub use guard::start_guard;
pub use signaller::{Signaller, take_count};
