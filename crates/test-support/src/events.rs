//! Eventfds, and waits for descriptors.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::deadline::STUCK_AFTER;

/// An eventfd that does not block.
#[must_use]
pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Signals an eventfd.
pub fn signal(event: impl AsFd) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}

/// How often an eventfd was signalled since this was last called.
pub fn take(event: impl AsFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            0
        }
    }
}

/// Whether a descriptor is readable, or its other end is closed.
pub fn is_readable(fd: impl AsFd) -> bool {
    poll_readable(&[fd.as_fd()], Timespec::default())[0]
}

/// Waits until a descriptor is readable; false if it never will be.
pub fn becomes_readable(fd: impl AsFd) -> bool {
    poll_readable(&[fd.as_fd()], Timespec::try_from(STUCK_AFTER).unwrap())[0]
}

/// Waits until some of these descriptors are readable, or closed at their other end: which ones.
#[track_caller]
pub fn wait_for_any(what: impl Display, fds: &[BorrowedFd<'_>]) -> Vec<bool> {
    let ready = poll_readable(fds, Timespec::try_from(STUCK_AFTER).unwrap());
    assert!(ready.contains(&true), "not after {STUCK_AFTER:?}: {what}");
    ready
}

fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Timespec) -> Vec<bool> {
    let polled = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let mut polled: Vec<_> = polled.collect();
    poll(&mut polled, Some(&timeout)).unwrap();
    polled.iter().map(|fd| !fd.revents().is_empty()).collect()
}
