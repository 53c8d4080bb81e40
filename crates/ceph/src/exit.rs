//! The end of the process: waits until connections are closed.
//!
//! librados and librbd have destructors of static objects, which crash now and then while threads of theirs run. A process that
//! still has connections when it ends must therefore leave by `_exit(2)`, which runs no destructors.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Numbers of connections that are not closed yet.
#[derive(Debug)]
struct Counts {
    /// All.
    open: usize,
    /// Those that were established: the others have no images to close.
    established: usize,
}

static COUNTS: Mutex<Counts> = Mutex::new(Counts {
    open: 0,
    established: 0,
});
static CLOSED: Condvar = Condvar::new();

/// Counts a connection until it is dropped, which is when it is closed.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    is_established: bool,
}

impl OpenConnection {
    /// Counts one more, which is not established yet.
    pub(crate) fn count() -> Self {
        lock_counts().open += 1;
        OpenConnection {
            is_established: false,
        }
    }

    /// From now on the end of the process waits for it.
    pub(crate) fn set_established(&mut self) {
        if !self.is_established {
            self.is_established = true;
            lock_counts().established += 1;
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut counts = lock_counts();
        counts.open -= 1;
        counts.established -= usize::from(self.is_established);
        CLOSED.notify_all();
    }
}

fn lock_counts() -> MutexGuard<'static, Counts> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every connection is closed, at most this long. They close when their images and owners are dropped.
///
/// False: some are not closed, and the process must leave by `_exit(2)`.
#[must_use]
pub fn wait_for_connections(timeout: Duration) -> bool {
    wait_until_none(timeout, |counts| counts.open)
}

/// Waits until there are none of these; returns whether every connection is closed.
fn wait_until_none(timeout: Duration, count: impl Fn(&Counts) -> usize) -> bool {
    let (counts, _) = CLOSED
        .wait_timeout_while(lock_counts(), timeout, |counts| count(counts) > 0)
        .unwrap_or_else(PoisonError::into_inner);
    counts.open == 0
}

/// Ends the process with this status, after waiting at most this long until every connection is closed. Those that are not
/// established yet are not waited for.
pub fn exit_process(status: i32, timeout: Duration) -> ! {
    if wait_until_none(timeout, |counts| counts.established) {
        std::process::exit(status);
    }
    // SAFETY: it ends the process, and nothing else.
    unsafe { libc::_exit(status) }
}

#[cfg(test)]
mod tests {
    use test_support::deadline::STUCK_AFTER;

    use super::*;

    #[test]
    fn the_process_waits_for_every_connection() {
        let (first, second) = (OpenConnection::count(), OpenConnection::count());
        assert!(!wait_for_connections(Duration::ZERO));
        drop(first);
        assert!(!wait_for_connections(Duration::ZERO));
        let closing = std::thread::spawn(|| drop(second));
        assert!(wait_for_connections(STUCK_AFTER));
        closing.join().unwrap();
        // One that is not established is not worth waiting for, but the process must know of it.
        let mut third = OpenConnection::count();
        assert!(!wait_until_none(STUCK_AFTER, |counts| counts.established));
        third.set_established();
        assert!(!wait_until_none(Duration::ZERO, |counts| counts.established));
        drop(third);
        assert!(wait_until_none(STUCK_AFTER, |counts| counts.established));
    }
}
