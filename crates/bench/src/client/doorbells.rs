//! The eventfds of a queue: kick, with which we call the server, and call, with which it calls us.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::error::{Error, Result};

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
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

    /// Something to wait for calls with.
    ///
    /// # Errors
    /// [`Error::Io`] when descriptors have run out.
    pub fn waiter(&self) -> Result<Waiter> {
        let doing = "watch an eventfd";
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io(doing))?;
        // Told once per call: nobody needs to read it, which is a syscall less.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &self.call, epoll::EventData::new_u64(0), flags)
            .map_err(Error::io(doing))?;
        Ok(Waiter {
            epoll,
            events: Vec::with_capacity(1),
        })
    }
}

/// Waits for calls: one syscall each.
pub struct Waiter {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Waiter {
    /// Waits until the server has called since the last wait, or `limit` has passed.
    ///
    /// # Errors
    /// What `epoll_wait(2)` says.
    pub fn wait(&mut self, limit: Duration) -> Result<Woken> {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        loop {
            self.events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&limit)) {
                Ok(0) => return Ok(Woken::TimedOut),
                Ok(_) => return Ok(Woken::Called),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("wait for the server's call")(errno)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_wakes_once() {
        let doorbells = Doorbells::new().unwrap();
        let mut waiter = doorbells.waiter().unwrap();
        rustix::io::write(doorbells.call_fd(), &1u64.to_ne_bytes()).unwrap();
        assert_eq!(waiter.wait(Duration::from_secs(20)).unwrap(), Woken::Called);
        assert_eq!(waiter.wait(Duration::ZERO).unwrap(), Woken::TimedOut);
        rustix::io::write(doorbells.call_fd(), &1u64.to_ne_bytes()).unwrap();
        assert_eq!(waiter.wait(Duration::from_secs(20)).unwrap(), Woken::Called);
    }
}
