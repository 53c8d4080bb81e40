//! The eventfds of a queue: kick, with which we call the server, and call, with which it calls us.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

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
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
}

impl Doorbells {
    /// New ones.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn new() -> Result<Self> {
        let new = || {
            EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK)
                .map_err(Error::io::<std::io::Error>("create an eventfd"))
        };
        Ok(Doorbells {
            kick: new()?,
            call: new()?,
        })
    }

    /// Signalled when the server calls.
    #[must_use]
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the eventfd is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) }
    }

    /// Calls the server.
    pub fn kick(&self) {
        // The counter can only be full when the server has not looked for 2^64 - 1 kicks.
        let _ = self.kick.write(1);
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
    /// For `calls`, which are eventfds, and the end of `server`, a socket that it closes when it ends.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn new<'d>(
        calls: impl IntoIterator<Item = BorrowedFd<'d>>,
        server: Option<BorrowedFd<'_>>,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(Error::io("make an epoll"))?;
        let watch = |fd: BorrowedFd<'_>, data, flags| {
            let added = epoll::add(&epoll, fd, epoll::EventData::new_u64(data), flags);
            added.map_err(Error::io("watch a descriptor"))
        };
        for call in calls {
            // Edge-triggered: the descriptor need not be read, which saves a system call.
            watch(call, CALL, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        if let Some(server) = server {
            // Level-triggered: the server stays gone.
            watch(server, SERVER, epoll::EventFlags::RDHUP)?;
        }
        Ok(Waiter {
            epoll,
            events: Vec::with_capacity(MAX_EVENTS),
        })
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
