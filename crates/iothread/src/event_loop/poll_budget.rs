//! Limit of the CPU time that polling may use (`poll-cpu-max`).
//!
//! A leaky bucket on the loop's clock. All time spent polling flows in, successful or not: what an
//! operator limits is what the thread is seen to use beyond its work. The bucket leaks at the share
//! that is allowed, and holds what that share makes in [`HORIZON_NS`]. A window that does not fit
//! is not polled at all, since a part of it would seldom catch the event that it was made for. So in
//! any time `t` at most `share * (t + HORIZON_NS)` is polled, and one look more.

/// The share holds over times that are long against this.
pub const HORIZON_NS: u64 = 100_000_000;

/// Percent that mean no limit: the loop is one thread.
const WHOLE_CPU_PERCENT: u64 = 100;

/// CPU time that polling has used of its share.
#[derive(Debug)]
pub struct PollBudget {
    percent: u64,
    /// Polled and not yet leaked, in hundredths of a nanosecond, so that percents are exact.
    level: u64,
    leaked_ns: u64,
}

impl PollBudget {
    /// Empty, for a share of `percent` of a CPU; 100 and more is no limit, 0 forbids polling.
    #[must_use]
    pub fn new(percent: u32) -> Self {
        PollBudget {
            percent: WHOLE_CPU_PERCENT.min(percent.into()),
            level: 0,
            leaked_ns: 0,
        }
    }

    /// Whether any amount of polling is allowed.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.percent == WHOLE_CPU_PERCENT
    }

    /// Whether polling for `window_ns` from `now_ns` on stays within the share.
    pub fn allows(&mut self, now_ns: u64, window_ns: u64) -> bool {
        if self.is_unlimited() {
            return true;
        }
        let leak = now_ns
            .saturating_sub(self.leaked_ns)
            .saturating_mul(self.percent);
        self.level = self.level.saturating_sub(leak);
        self.leaked_ns = now_ns;
        let capacity = self.percent * HORIZON_NS;
        self.level
            .saturating_add(window_ns.saturating_mul(WHOLE_CPU_PERCENT))
            .le(&capacity)
    }

    /// The loop has polled for so long.
    pub fn spend(&mut self, polled_ns: u64) {
        if !self.is_unlimited() {
            self.level = self
                .level
                .saturating_add(polled_ns.saturating_mul(WHOLE_CPU_PERCENT));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for windows one after the other without a pause, for a second; the time polled.
    fn greedy(percent: u32, window_ns: u64) -> u64 {
        let mut budget = PollBudget::new(percent);
        let (mut now_ns, mut polled_ns) = (0, 0);
        while now_ns < 1_000_000_000 {
            if budget.allows(now_ns, window_ns) {
                budget.spend(window_ns);
                polled_ns += window_ns;
                now_ns += window_ns;
            } else {
                now_ns += 1_000;
            }
        }
        polled_ns
    }

    #[test]
    fn the_share_is_kept_to_the_window() {
        for percent in [1, 7, 25, 50, 90] {
            for window_ns in [4_000, 60_000, 200_000] {
                let polled_ns = greedy(percent, window_ns);
                // What a second and the horizon allow; less than a window of it is left over.
                let allowed_ns = u64::from(percent) * (1_000_000_000 + HORIZON_NS) / 100;
                assert!(polled_ns <= allowed_ns + window_ns, "{percent} {window_ns}");
                assert!(
                    polled_ns + 2 * window_ns >= allowed_ns,
                    "{percent} {window_ns}: {polled_ns} of {allowed_ns}"
                );
            }
        }
    }

    #[test]
    fn nothing_and_everything() {
        assert_eq!(greedy(0, 1), 0);
        assert_eq!(greedy(100, 1_000), 1_000_000_000);
        assert_eq!(greedy(1_000, 1_000), 1_000_000_000);
    }

    #[test]
    fn a_window_that_never_fits_is_never_polled() {
        assert_eq!(greedy(1, HORIZON_NS / 100 + 1), 0);
    }
}
