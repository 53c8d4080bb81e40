//! Signals to front-ends.
//!
//! A write to an eventfd blocks while its counter is full and `O_NONBLOCK` is not set. The flag belongs to the open file,
//! which the front-end shares: it can clear the flag at any time, also between a check and the write. So the first write that
//! blocks is interrupted by the [guard](crate::guard), and from then on the eventfds of this front-end and its successors are
//! signalled [through Linux AIO](crate::aio_signal), which costs more and never blocks.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, ReadWriteFlags};

use crate::aio_signal;
use crate::guard::interrupt_if_blocked;

/// Signals the eventfds of an export. Clones belong to the same export, and may be on any thread.
#[derive(Clone)]
pub struct Signaller(Arc<ExportState>);

struct ExportState {
    name: String,
    /// A write has blocked: none may be made any more.
    has_blocked: AtomicBool,
}

impl Signaller {
    /// For an export of this name, which is for the log.
    #[must_use]
    pub fn new(export: &str) -> Self {
        Signaller(Arc::new(ExportState {
            name: export.to_owned(),
            has_blocked: AtomicBool::new(false),
        }))
    }

    /// Signals an eventfd. A full counter is a signal that is pending already; any other error is the front-end's fault.
    pub fn signal(&self, fd: &OwnedFd) {
        if self.0.has_blocked.load(Ordering::Relaxed) {
            aio_signal::signal(fd);
            return;
        }
        let written = interrupt_if_blocked(|| rustix::io::write(fd, &1u64.to_ne_bytes()));
        // A write that has room is not interrupted.
        if written == Err(Errno::INTR) {
            self.log_and_signal_after_blocked_write(fd);
        }
    }

    #[cold]
    fn log_and_signal_after_blocked_write(&self, fd: &OwnedFd) {
        if !self.0.has_blocked.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                export = self.0.name,
                "the front-end blocked this thread: it made an eventfd blocking and filled it. Its eventfds are signalled \
                 through Linux AIO from now on, which never blocks"
            );
        }
        aio_signal::signal(fd);
    }
}

/// Reads the counter of an eventfd and clears it; zero: it was not signalled. Does not block, whatever the flags of the
/// eventfd are.
#[must_use]
pub fn take_count(fd: &OwnedFd) -> u64 {
    /// The current position, as of read(2).
    const NO_OFFSET: u64 = u64::MAX;
    let mut count = [0; 8];
    let buffer = &mut [IoSliceMut::new(&mut count)];
    match rustix::io::preadv2(fd, buffer, NO_OFFSET, ReadWriteFlags::NOWAIT) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};

    /// One signal fits; the write of another one blocks.
    const NEARLY_FULL: u64 = u64::MAX - 2;

    /// An eventfd whose writes block when it is full, with this count.
    fn blocking_eventfd(count: u64) -> OwnedFd {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &count.to_ne_bytes()).unwrap();
        fd
    }

    #[test]
    fn signals_add_up_and_reading_clears_them() {
        let (signaller, fd) = (Signaller::new("e"), blocking_eventfd(1));
        signaller.signal(&fd);
        signaller.signal(&fd);
        assert_eq!(take_count(&fd), 3);
        assert_eq!(take_count(&fd), 0, "a read of an empty one does not block");
    }

    /// The first full eventfd blocks until the guard interrupts the write; others do not block at all.
    #[test]
    fn blocked_write_is_interrupted_and_none_follows() {
        crate::start_guard().unwrap();
        let signaller = Signaller::new("e");
        let full = blocking_eventfd(NEARLY_FULL);
        signaller.signal(&full);
        assert!(
            !signaller.0.has_blocked.load(Ordering::Relaxed),
            "it had room"
        );
        signaller.signal(&full);
        assert!(signaller.0.has_blocked.load(Ordering::Relaxed));
        assert_eq!(take_count(&full), u64::MAX, "signalled nevertheless");
        // Each of these would block for 50 ms at least, if it were written.
        let (times, began) = (1000, Instant::now());
        for _ in 0..times {
            signaller.clone().signal(&blocking_eventfd(NEARLY_FULL + 1));
        }
        assert!(began.elapsed() < times * Duration::from_millis(50) / 2);
    }

    #[test]
    fn other_exports_are_signalled_by_writes() {
        crate::start_guard().unwrap();
        let (hostile, other) = (Signaller::new("hostile"), Signaller::new("other"));
        hostile.signal(&blocking_eventfd(NEARLY_FULL + 1));
        let fd = blocking_eventfd(1);
        other.signal(&fd);
        assert_eq!(take_count(&fd), 2);
        assert!(!other.0.has_blocked.load(Ordering::Relaxed));
    }
}
