//! The eventfds of a queue: kick, with which we call the server, and call, with which it calls us.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::error::{Error, Result};

/// Calls taken by one wait: those of more queues are there at the next.
const MAX_EVENTS: usize = 16;

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The server called.
    Called,
    /// It did not, for the whole time.
    TimedOut,
}

/// Both eventfds of a queue.
#[derive(Debug)]
pub struct Doorbells {
    kick: OwnedFd,
    call: OwnedFd,
}

impl Doorbells {
    /// New ones.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn new() -> Result<Self> {
        let new = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(Error::io("create an eventfd"))
        };
        Ok(Doorbells {
            kick: new()?,
            call: new()?,
        })
    }

    /// For the server, to be called with.
    #[must_use]
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// For the server, to call with.
    #[must_use]
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Calls the server.
    pub fn kick(&self) {
        // The counter can only be full when the server has not looked for 2^64 - 1 kicks.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }
}

/// Waits for calls of some queues, or the end of the server: one syscall each.
pub struct Waiter {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// Tells a server's end from calls.
const SERVER: u64 = 1;
const CALL: u64 = 0;

impl Waiter {
    /// For whatever `fd`, an eventfd, says.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn on(fd: BorrowedFd<'_>) -> Result<Self> {
        let mut waiter = Waiter::empty()?;
        waiter.watch(fd)?;
        Ok(waiter)
    }

    /// For `calls`, which are eventfds, and the end of `server`, a socket that it closes when it ends.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn new<'d>(
        calls: impl IntoIterator<Item = BorrowedFd<'d>>,
        server: BorrowedFd<'_>,
    ) -> Result<Self> {
        let mut waiter = Waiter::empty()?;
        for call in calls {
            waiter.watch(call)?;
        }
        // Level-triggered: the server stays gone.
        epoll::add(
            &waiter.epoll,
            server,
            epoll::EventData::new_u64(SERVER),
            epoll::EventFlags::RDHUP,
        )
        .map_err(Error::io("watch the server's socket"))?;
        Ok(waiter)
    }

    fn empty() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Waiter {
            epoll: epoll.map_err(Error::io("make an epoll"))?,
            events: Vec::with_capacity(MAX_EVENTS),
        })
    }

    fn watch(&mut self, eventfd: BorrowedFd<'_>) -> Result<()> {
        // Edge-triggered: the descriptor need not be read, which saves a system call.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, eventfd, epoll::EventData::new_u64(CALL), flags)
            .map_err(Error::io("watch an eventfd"))
    }

    /// Waits until the server has called since the last wait, or `limit` has passed.
    ///
    /// # Errors
    /// [`Error::Gone`] when the server closed its socket; what `epoll_wait(2)` says.
    pub fn wait(&mut self, limit: Duration) -> Result<WakeReason> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        loop {
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&limit)) {
                Ok(0) => return Ok(WakeReason::TimedOut),
                Ok(_) if self.events.iter().any(|event| event.data.u64() == SERVER) => {
                    return Err(Error::Gone);
                }
                Ok(_) => return Ok(WakeReason::Called),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("wait for the server's call")(errno)),
            }
        }
    }
}
