//! Fake poller for tests: descriptors become ready when the test has them ready, and time
//! passes only when the loop waits or reads the clock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event_loop::poller::{Event, Interest, MAX_EVENTS_PER_WAIT, Poller, Readiness};

/// State of the fake poller.
#[derive(Default)]
pub struct FakeState {
    /// Watched descriptors and their cookies.
    pub watched: BTreeMap<RawFd, (Interest, u64)>,
    /// Descriptors that the next waits return, oldest first.
    pub ready: VecDeque<RawFd>,
    /// The clock.
    pub now_ns: u64,
    /// Time that passes with each reading of the clock.
    pub tick_ns: u64,
    /// Descriptors that become ready at a later time, soonest first.
    pub arrivals: VecDeque<(u64, RawFd)>,
    /// Time that a wait lasts beyond the arrival that ends it.
    pub wake_ns: u64,
    /// Time that passed in waits.
    pub slept_ns: u64,
    /// Timeouts of all waits so far.
    pub waits: Vec<Option<u64>>,
}

/// The fake poller; clones share their state, so that a test keeps one and the loop gets the other.
#[derive(Clone, Default)]
pub struct FakePoller(Arc<Mutex<FakeState>>);

impl FakePoller {
    /// The state, to be read and changed.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeState {
    /// Makes descriptors ready whose time has come.
    fn arrive(&mut self) {
        while let Some((at_ns, fd)) = self.arrivals.front().copied() {
            if at_ns > self.now_ns {
                break;
            }
            self.arrivals.pop_front();
            self.ready.push_back(fd);
        }
    }

    /// Lets time pass until something arrives, or for `timeout_ns`.
    fn sleep(&mut self, timeout_ns: Option<u64>) {
        let begin_ns = self.now_ns;
        let timeout_at_ns = timeout_ns.map(|timeout_ns| self.now_ns + timeout_ns);
        match (self.arrivals.front(), timeout_at_ns) {
            (Some((at_ns, _)), timeout) if timeout.is_none_or(|timeout| *at_ns <= timeout) => {
                self.now_ns = at_ns + self.wake_ns;
            }
            (_, timeout) => self.now_ns = timeout.unwrap_or(self.now_ns),
        }
        self.slept_ns += self.now_ns - begin_ns;
        self.arrive();
    }
}

impl Poller for FakePoller {
    /// Adds a descriptor to the watched ones; `EEXIST` if it is one, as of epoll.
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        match self
            .state()
            .watched
            .insert(fd.as_raw_fd(), (interest, cookie))
        {
            None => Ok(()),
            Some(_) => Err(rustix::io::Errno::EXIST.into()),
        }
    }

    /// Changes the interest and the cookie of a watched descriptor; `ENOENT` if it is none, as of epoll.
    fn modify(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        match self
            .state()
            .watched
            .insert(fd.as_raw_fd(), (interest, cookie))
        {
            Some(_) => Ok(()),
            None => Err(rustix::io::Errno::NOENT.into()),
        }
    }

    fn delete(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.state().watched.remove(&fd.as_raw_fd()) {
            Some(_) => Ok(()),
            None => Err(rustix::io::Errno::NOENT.into()),
        }
    }

    /// Records the timeout, lets time pass if nothing is ready, and returns descriptors that are.
    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()> {
        events.clear();
        let mut state = self.state();
        state.waits.push(timeout_ns);
        state.arrive();
        if state.ready.is_empty() {
            state.sleep(timeout_ns);
        }
        while events.len() < MAX_EVENTS_PER_WAIT {
            let Some(fd) = state.ready.pop_front() else {
                break;
            };
            if let Some((_, cookie)) = state.watched.get(&fd) {
                let readiness = Readiness {
                    readable: true,
                    ..Readiness::default()
                };
                events.push(Event {
                    cookie: *cookie,
                    readiness,
                });
            }
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns += state.tick_ns;
        state.now_ns
    }
}
