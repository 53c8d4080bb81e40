//! A fake kernel to put under a loop: descriptors become ready when a test says so, and time
//! passes only when the loop waits.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::poller::{Event, Interest, MAX_EVENTS_PER_WAIT, Poller, Readiness};

/// What the fake kernel knows.
#[derive(Default)]
pub struct FakeState {
    /// Watched descriptors and their cookies.
    pub watched: BTreeMap<RawFd, (Interest, u64)>,
    /// What the next waits return, oldest first.
    pub ready: VecDeque<RawFd>,
    /// The clock.
    pub now_ns: u64,
    /// How far each reading of the clock moves it.
    pub tick_ns: u64,
    /// Timeouts of all waits so far.
    pub waits: Vec<Option<u64>>,
}

/// The fake; clones share their state, so that a test keeps one and the loop gets the other.
#[derive(Clone, Default)]
pub struct FakePoller(Arc<Mutex<FakeState>>);

impl FakePoller {
    /// The state, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Poller for FakePoller {
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

    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()> {
        events.clear();
        let mut state = self.state();
        state.waits.push(timeout_ns);
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
        if events.is_empty() {
            state.now_ns += timeout_ns.unwrap_or(0);
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let mut state = self.state();
        state.now_ns += state.tick_ns;
        state.now_ns
    }
}
