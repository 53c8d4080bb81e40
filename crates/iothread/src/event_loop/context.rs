//! Services of the loop for its runner: watch a descriptor, set a timer, read the clock.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::event_loop::handlers::{HandlerId, Handlers};
use crate::event_loop::poller::{Interest, Poller};
use crate::event_loop::timers::{TimerId, Timers};
use crate::event_loop::totals::LoopTotals;

/// Services of the loop for its runner, generic over the runner's tags for handlers and timers.
pub struct Context<H, T> {
    pub(crate) poller: Box<dyn Poller>,
    /// All timers up to this time have expired in this iteration, or do so now.
    pub(crate) expired_until_ns: u64,
    pub(crate) handlers: Handlers<H>,
    pub(crate) timers: Timers<T>,
    pub(crate) totals: Arc<LoopTotals>,
}

impl<H: Copy, T: Copy> Context<H, T> {
    /// A context with this poller.
    #[must_use]
    pub fn new(poller: Box<dyn Poller>) -> Self {
        Context {
            poller,
            expired_until_ns: 0,
            handlers: Handlers::default(),
            timers: Timers::default(),
            totals: Arc::default(),
        }
    }

    /// Watches `fd`, which the loop owns from now on; the runner is called with `handler` when it is ready.
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`; the descriptor is closed then.
    pub fn add(&mut self, fd: OwnedFd, interest: Interest, handler: H) -> io::Result<HandlerId> {
        let id = self.handlers.insert(fd, handler);
        if let Some(fd) = self.handlers.fd(id)
            && let Err(error) = self.poller.add(fd.as_fd(), interest, id.cookie())
        {
            self.handlers.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Changes the events that a registered descriptor is watched for.
    ///
    /// # Errors
    /// `ENOENT` when the handler was deleted; else the error of `epoll_ctl(2)`.
    pub fn modify(&mut self, id: HandlerId, interest: Interest) -> io::Result<()> {
        let fd = self.handlers.fd(id).ok_or(rustix::io::Errno::NOENT)?;
        self.poller.modify(fd.as_fd(), interest, id.cookie())
    }

    /// The descriptor that a handler watches; `None` when it was deleted.
    #[must_use]
    pub fn fd(&self, id: HandlerId) -> Option<BorrowedFd<'_>> {
        self.handlers.fd(id).map(AsFd::as_fd)
    }

    /// Deletes a handler at any time, also from within itself or from within another one that is
    /// ready in the same iteration. Returns the descriptor; `None` when it was deleted before.
    pub fn delete(&mut self, id: HandlerId) -> Option<OwnedFd> {
        let fd = self.handlers.remove(id)?;
        // The kernel knows the descriptor: it was added, and only this handler owns it.
        let deleted = self.poller.delete(fd.as_fd());
        debug_assert!(deleted.is_ok());
        Some(fd)
    }

    /// Sets a timer on [`Context::now_ns`]'s clock. If it is due already, it expires in the next iteration.
    pub fn add_timer(&mut self, deadline_ns: u64, timer: T) -> TimerId {
        let next_ns = self.expired_until_ns.saturating_add(1);
        self.timers.insert(deadline_ns.max(next_ns), timer)
    }

    /// Cancels a timer; false when it is no longer set.
    pub fn cancel_timer(&mut self, id: TimerId) -> bool {
        self.timers.cancel(id)
    }

    /// The loop's clock, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.poller.now_ns()
    }

    /// Counters of the loop, for other threads.
    #[must_use]
    pub fn totals(&self) -> Arc<LoopTotals> {
        self.totals.clone()
    }

    /// Number of registered handlers.
    #[must_use]
    pub fn handler_count(&self) -> usize {
        self.handlers.len()
    }
}
