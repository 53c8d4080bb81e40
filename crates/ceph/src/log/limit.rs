//! Limit on the rate of warnings and errors of a connection's log: without it a cluster that is away, or an image whose requests
//! all fail, fills the daemon's log.

use std::time::{Duration, Instant};

/// Most lines in a [`PERIOD`].
const MAX_LINES: u32 = 20;

/// The time for which lines are counted together.
const PERIOD: Duration = Duration::from_secs(10);

/// Counts the lines of the current period.
#[derive(Debug)]
pub(super) struct LineLimit {
    begin: Instant,
    lines: u32,
    left_out: u64,
}

/// The verdict on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is emitted; so many lines were left out before it.
    Emit { left_out: u64 },
    /// It is left out.
    LeaveOut,
}

impl LineLimit {
    /// No line yet.
    pub(super) fn new(now: Instant) -> Self {
        LineLimit {
            begin: now,
            lines: 0,
            left_out: 0,
        }
    }

    /// Counts a line.
    pub(super) fn count(&mut self, now: Instant) -> Verdict {
        if now.saturating_duration_since(self.begin) >= PERIOD {
            (self.begin, self.lines) = (now, 0);
        }
        if self.lines == MAX_LINES {
            self.left_out += 1;
            return Verdict::LeaveOut;
        }
        self.lines += 1;
        let left_out = std::mem::take(&mut self.left_out);
        Verdict::Emit { left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_and_reported_with_the_first_line_of_the_next_period() {
        let begin = Instant::now();
        let mut limit = LineLimit::new(begin);
        for _ in 0..MAX_LINES {
            assert_eq!(limit.count(begin), Verdict::Emit { left_out: 0 });
        }
        for _ in 0..3 {
            assert_eq!(limit.count(begin + PERIOD / 2), Verdict::LeaveOut);
        }
        let later = begin + PERIOD;
        assert_eq!(limit.count(later), Verdict::Emit { left_out: 3 });
        assert_eq!(limit.count(later), Verdict::Emit { left_out: 0 });
    }
}
