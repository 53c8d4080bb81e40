//! Deadlines of waits.
//!
//! A test never measures time, but it also never waits for ever: what has not happened after [`STUCK_AFTER`] never will, and the
//! test fails with what it was waiting for.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// The limit of every wait: far above what anything here needs, so that a busy machine fails no test.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);

const INTERVAL: Duration = Duration::from_millis(2);

/// The end of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begin: Instant,
    limit: Duration,
}

impl Default for Deadline {
    fn default() -> Self {
        Self::after(STUCK_AFTER)
    }
}

impl Deadline {
    /// A limit of its own, for what takes longer than anything else.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Deadline {
            begin: Instant::now(),
            limit,
        }
    }

    /// The time that is left.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.begin.elapsed())
    }

    /// Panics if the time is over; `what` is missing then.
    #[track_caller]
    pub fn check(&self, what: impl Display) {
        if self.remaining().is_zero() {
            self.missed(what);
        }
    }

    /// Panics: `what` has not happened.
    #[track_caller]
    pub fn missed(&self, what: impl Display) -> ! {
        panic!("not after {:?}: {what}", self.limit);
    }

    /// The same, then sleeps for a moment: for polling a condition that has no notification.
    #[track_caller]
    pub fn pause(&self, what: impl Display) {
        self.check(what);
        thread::sleep(INTERVAL);
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn eventually(what: impl Display, mut condition: impl FnMut() -> bool) {
    let deadline = Deadline::default();
    while !condition() {
        deadline.pause(&what);
    }
}

/// Waits until an attempt succeeds, and returns its result. The last failure is shown when none does in time.
#[track_caller]
pub fn eventually_ok<T, E: Debug>(
    what: impl Display,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> T {
    let deadline = Deadline::default();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(failure) => deadline.pause(format_args!("{what}: {failure:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "not after 0ns: a queue that starts")]
    fn a_deadline_that_has_passed_names_what_is_missing() {
        Deadline::after(Duration::ZERO).check("a queue that starts");
    }
}
