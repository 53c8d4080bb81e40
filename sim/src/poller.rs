//! Wake-ups of an iothread: kicks, completions, messages, time. Between these it sleeps, and is not run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iothread::event_loop::poller::Event;
use iothread::event_loop::{Interest, Poller, Readiness};
use rustix::io::Errno;

use crate::clock;

/// The loop's own descriptor, for its mail.
const WAKE_COOKIE: u64 = u64::MAX;

/// What the poller knows.
#[derive(Debug, Default)]
pub struct State {
    watched: BTreeMap<RawFd, (u64, Interest)>,
    ready: VecDeque<RawFd>,
    /// Kick descriptors that were handed out, and those of them that were ever signalled.
    kicks: BTreeSet<RawFd>,
    signalled: BTreeSet<RawFd>,
    /// It waits, until then if that is said.
    asleep: bool,
    due_ns: Option<u64>,
}

impl State {
    /// Adds a kick descriptor that is not signalled.
    pub fn new_kick(&mut self, fd: RawFd) {
        self.kicks.insert(fd);
        self.signalled.remove(&fd);
    }

    /// The guest signals it.
    pub fn kick(&mut self, fd: RawFd) {
        self.signalled.insert(fd);
        self.is_ready(fd);
    }

    /// The kernel has completed something.
    pub fn completed(&mut self) {
        let io: Vec<_> = self
            .watched
            .iter()
            .filter(|(fd, (cookie, interest))| {
                *cookie != WAKE_COOKIE
                    && *interest == Interest::ReadableEdge
                    && !self.kicks.contains(fd)
            })
            .map(|(fd, _)| *fd)
            .collect();
        for fd in io {
            self.is_ready(fd);
        }
    }

    /// Sockets have something to read.
    pub fn sent(&mut self) {
        let watched = self.watched.iter();
        let sockets = watched.filter(|(_, (_, interest))| *interest == Interest::Readable);
        for fd in sockets.map(|(fd, _)| *fd).collect::<Vec<_>>() {
            self.is_ready(fd);
        }
    }

    fn is_ready(&mut self, fd: RawFd) {
        if self.watched.contains_key(&fd) && !self.ready.contains(&fd) {
            self.ready.push_back(fd);
        }
    }

    /// Wakes it for a message.
    pub fn wake(&mut self) {
        self.asleep = false;
    }

    /// Whether there is a reason to run.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        !self.asleep
            || !self.ready.is_empty()
            || self.due_ns.is_some_and(|due| due <= clock::now_ns())
    }

    /// When it wakes up by itself.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }
}

/// A handle to it.
#[derive(Clone, Debug, Default)]
pub struct Wakeups(Arc<Mutex<State>>);

impl Wakeups {
    /// What it knows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Poller for Wakeups {
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        let (mut state, fd) = (self.state(), fd.as_raw_fd());
        if state.watched.insert(fd, (cookie, interest)).is_some() {
            return Err(Errno::EXIST.into());
        }
        // Edge-triggered: an earlier signal is reported too.
        if state.signalled.contains(&fd) {
            state.is_ready(fd);
        }
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        let watched = &mut self.state().watched;
        match watched.insert(fd.as_raw_fd(), (cookie, interest)) {
            Some(_) => Ok(()),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn delete(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let (mut state, fd) = (self.state(), fd.as_raw_fd());
        state.ready.retain(|ready| *ready != fd);
        match state.watched.remove(&fd) {
            Some(_) => Ok(()),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()> {
        events.clear();
        let mut state = self.state();
        clock::advance(1000);
        while let Some(fd) = state.ready.pop_front() {
            let (cookie, _) = state.watched[&fd];
            let readiness = Readiness {
                readable: true,
                ..Readiness::default()
            };
            events.push(Event { cookie, readiness });
        }
        state.asleep = events.is_empty() && timeout_ns != Some(0);
        state.due_ns = timeout_ns
            .filter(|_| state.asleep)
            .map(|timeout_ns| clock::now_ns() + timeout_ns);
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }
}
