//! Wake-up of a loop by another thread: an eventfd, which is written only while the loop sleeps.
//!
//! Two flags: `notified` (there is work) and `sleeping` (the loop is in, or about
//! to enter, its wait). A waker sets the first and then reads the second; the loop sets the second
//! and then reads the first. With sequential consistency at least one of them sees the other, so
//! either the loop does not sleep or the waker writes the eventfd. While the loop is awake a wake-up
//! is two memory accesses.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::atomic::{AtomicBool, Ordering};

/// Wake-up flags, shared by a loop and the threads that may wake it.
pub struct Wake {
    notified: AtomicBool,
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl Wake {
    /// Creates the flags and the eventfd.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` when descriptors have run out.
    pub fn new() -> io::Result<Self> {
        Ok(Wake {
            notified: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The descriptor that the loop watches for edges.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Any thread: wakes the loop. Makes a system call only when the loop sleeps.
    pub fn wake(&self) {
        if self.notified.swap(true, Ordering::SeqCst) {
            // Another thread has notified it, and the loop has not taken that yet: it will see our work as well.
            return;
        }
        if self.sleeping.load(Ordering::SeqCst) {
            // A full counter (EAGAIN) is as readable as any.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// The loop: whether it was notified since the last [`Wake::take_notified_flag`].
    #[must_use]
    pub fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The loop: takes the notification and resets it.
    pub fn take_notified_flag(&self) -> bool {
        // The plain load keeps the cache line shared while no thread notifies.
        self.is_notified() && self.notified.swap(false, Ordering::SeqCst)
    }

    /// The loop, before it waits: from now on a waker writes the eventfd. False when it was notified already: then it must not
    /// wait.
    #[must_use]
    pub fn try_begin_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.notified.load(Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The loop, after its wait: wakers need not write the eventfd any more.
    pub fn end_sleep(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    fn eventfd_value(wake: &Wake) -> Option<u64> {
        let mut value = [0; 8];
        rustix::io::read(&wake.event, &mut value).ok()?;
        Some(u64::from_ne_bytes(value))
    }

    #[test]
    fn an_awake_loop_is_woken_without_a_syscall() {
        let wake = Wake::new().unwrap();
        wake.wake();
        wake.wake();
        assert_eq!(eventfd_value(&wake), None, "the eventfd was not written");
        assert!(!wake.try_begin_sleep(), "but the loop does not go to sleep");
        assert!(wake.take_notified_flag());
        assert!(!wake.take_notified_flag());
    }

    #[test]
    fn a_sleeping_loop_is_woken_by_the_eventfd_once() {
        let wake = Wake::new().unwrap();
        assert!(wake.try_begin_sleep());
        wake.wake();
        wake.wake();
        assert_eq!(eventfd_value(&wake), Some(1));
    }

    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 20_000;
        let wake = Arc::new(Wake::new().unwrap());
        let work = Arc::new(AtomicU64::new(0));
        let seen = Arc::new(AtomicU64::new(0));
        let sender = {
            let (wake, work, seen) = (wake.clone(), work.clone(), seen.clone());
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    work.store(round, Ordering::Release);
                    wake.wake();
                    // Every other round waits, so that the loop really goes to sleep.
                    while round % 2 == 0 && seen.load(Ordering::Acquire) < round {
                        std::thread::yield_now();
                    }
                }
            })
        };
        while seen.load(Ordering::Relaxed) < ROUNDS {
            wake.take_notified_flag();
            let now = work.load(Ordering::Acquire);
            seen.store(now, Ordering::Release);
            if now < ROUNDS && wake.try_begin_sleep() {
                let mut fds = [PollFd::new(&wake.event, PollFlags::IN)];
                let patience = Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                assert_ne!(
                    poll(&mut fds, Some(&patience)).unwrap(),
                    0,
                    "slept through a wake-up"
                );
                eventfd_value(&wake);
            }
            wake.end_sleep();
        }
        sender.join().unwrap();
    }
}
