//! Interface between the loop and the kernel (watch descriptors, wait, read the clock), and its implementation by epoll(7).
//!
//! [`Poller`] is all that the loop needs of an operating system. [`Epoll`] is the real one; tests use a fake.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll;

/// Limit of ready descriptors of one wait. The kernel keeps the rest, oldest first, for the next wait, so none starves. The limit
/// bounds the time that completions wait for the dispatch.
pub const MAX_EVENTS_PER_WAIT: usize = 128;

/// Events that a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Readable, level-triggered: reported at every wait until it was read.
    Readable,
    /// Readable, edge-triggered: reported once per event. On an eventfd every write is an event, so that it
    /// need not be read: one system call less per kick.
    ReadableEdge,
    /// Writable, level-triggered.
    Writable,
}

/// Readiness of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Can be read without blocking.
    pub readable: bool,
    /// Can be written without blocking.
    pub writable: bool,
    /// The peer is gone or the descriptor is in error.
    pub hangup: bool,
}

/// A ready descriptor: its cookie and its readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// As given to [`Poller::add`].
    pub cookie: u64,
    /// Its readiness.
    pub readiness: Readiness,
}

/// Readiness notification and clock.
pub trait Poller {
    /// Watches a descriptor.
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`; typically `EPERM` for a descriptor that cannot be polled.
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()>;
    /// Changes the events that it is watched for.
    ///
    /// # Errors
    /// As for [`Poller::add`].
    fn modify(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()>;
    /// Stops watching it.
    ///
    /// # Errors
    /// As for [`Poller::add`].
    fn delete(&mut self, fd: BorrowedFd<'_>) -> io::Result<()>;
    /// Waits for ready descriptors, at most `timeout_ns` (`None`: without limit, 0: not at all), and
    /// puts at most [`MAX_EVENTS_PER_WAIT`] of them into `events`, which it clears first.
    ///
    /// # Errors
    /// The error of `epoll_pwait2(2)`. An interrupting signal is no error: no events.
    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()>;
    /// A monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// The kernel's `epoll(7)`.
pub struct Epoll {
    epoll: OwnedFd,
    buffer: Vec<epoll::Event>,
}

impl Epoll {
    /// Creates an epoll instance.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` when descriptors have run out.
    pub fn new() -> io::Result<Self> {
        Ok(Epoll {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            buffer: Vec::with_capacity(MAX_EVENTS_PER_WAIT),
        })
    }
}

/// The flags of `epoll_ctl(2)` for an interest.
fn epoll_flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Readable => epoll::EventFlags::IN,
        Interest::ReadableEdge => epoll::EventFlags::IN | epoll::EventFlags::ET,
        Interest::Writable => epoll::EventFlags::OUT,
    }
}

impl Poller for Epoll {
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(cookie),
            epoll_flags(interest),
        )?)
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, interest: Interest, cookie: u64) -> io::Result<()> {
        Ok(epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(cookie),
            epoll_flags(interest),
        )?)
    }

    fn delete(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Calls epoll_pwait2(2), and translates its events.
    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: Option<u64>) -> io::Result<()> {
        events.clear();
        self.buffer.clear();
        let timeout = timeout_ns.map(timespec);
        match epoll::wait(
            self.epoll.as_fd(),
            spare_capacity(&mut self.buffer),
            timeout.as_ref(),
        ) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        events.extend(self.buffer.iter().map(|event| {
            let flags = event.flags;
            Event {
                cookie: event.data.u64(),
                readiness: Readiness {
                    readable: flags.contains(epoll::EventFlags::IN),
                    writable: flags.contains(epoll::EventFlags::OUT),
                    hangup: flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR),
                },
            }
        }));
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        // The monotonic clock starts near zero at boot: neither part is negative.
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn signalled() -> OwnedFd {
        eventfd(1, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn an_edge_is_reported_once_per_write_without_a_read() {
        let mut poller = Epoll::new().unwrap();
        let fd = signalled();
        poller.add(fd.as_fd(), Interest::ReadableEdge, 7).unwrap();
        let mut events = Vec::new();
        poller.wait(&mut events, Some(0)).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].cookie, 7);
        poller.wait(&mut events, Some(0)).unwrap();
        assert!(events.is_empty(), "no write since");
        rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        poller.wait(&mut events, Some(0)).unwrap();
        assert_eq!(events.len(), 1, "written again, never read");
    }

    #[test]
    fn a_wait_is_not_rounded_up_to_milliseconds() {
        let mut poller = Epoll::new().unwrap();
        let mut events = Vec::new();
        let mut shortest = |timeout_ns| {
            let mut once = || {
                let before = poller.now_ns();
                poller.wait(&mut events, Some(timeout_ns)).unwrap();
                poller.now_ns() - before
            };
            (0..50).map(|_| once()).min()
        };
        // The shortest of many, since other threads may have the processor.
        assert!(shortest(50_000).map(|ns| 2 * ns) < shortest(1_000_000));
    }

    #[test]
    fn more_ready_descriptors_than_one_wait_takes_are_reported_in_turn() {
        let mut poller = Epoll::new().unwrap();
        let count = 3 * MAX_EVENTS_PER_WAIT;
        let fds: Vec<_> = (0..count).map(|_| signalled()).collect();
        for (cookie, fd) in fds.iter().enumerate() {
            poller
                .add(fd.as_fd(), Interest::Readable, cookie as u64)
                .unwrap();
        }
        let mut seen = vec![0; count];
        let mut events = Vec::new();
        for _ in 0..3 {
            poller.wait(&mut events, Some(0)).unwrap();
            assert_eq!(events.len(), MAX_EVENTS_PER_WAIT);
            for event in &events {
                seen[usize::try_from(event.cookie).unwrap()] += 1;
            }
        }
        assert!(
            seen.iter().all(|&times| times == 1),
            "level-triggered descriptors take turns"
        );
    }
}
