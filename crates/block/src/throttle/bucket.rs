//! The leaky bucket of one limit: how many units may pass now, and when the next ones may.
//!
//! Units that pass fill the bucket, and it leaks at the rate of the limit. As in QEMU (docs/throttle.txt), it holds a burst:
//! burst rate times burst length, or a tenth of a second of the rate if there is no burst rate. For bursts longer than a
//! second, a second bucket, which leaks at the burst rate, holds the burst itself to its rate.

use super::limits::RateLimit;
use super::numbers::as_f64;

/// Seconds of its rate that a bucket holds which has no burst of its own.
const FREE_BURST_SECONDS: f64 = 0.1;

const NS_PER_SECOND: f64 = 1e9;

/// A bucket that leaks.
#[derive(Clone, Copy, Debug)]
struct Leaky {
    /// Units that it holds.
    size: f64,
    /// Units per nanosecond that leak.
    rate: f64,
    /// Units in it; negative: units kept for debts of active accounts.
    level: f64,
}

impl Leaky {
    fn new(size: f64, rate_per_second: f64) -> Self {
        Leaky {
            size,
            rate: rate_per_second / NS_PER_SECOND,
            level: 0.0,
        }
    }

    /// Returns the units that could have leaked, had there been more in it.
    fn leak(&mut self, ns: f64, debts: f64) -> f64 {
        let level = self.level - self.rate * ns;
        self.level = level.max(-debts);
        self.level - level
    }

    fn room(&self) -> f64 {
        self.size - self.level
    }

    /// Nanoseconds until there is so much room.
    fn ns_until_room(&self, units: f64) -> f64 {
        ((units - self.room()) / self.rate).max(0.0)
    }
}

/// The bucket of one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    long_run: Leaky,
    burst: Option<Leaky>,
}

impl Bucket {
    /// An empty bucket; `None` without a limit.
    pub fn new(limit: RateLimit) -> Option<Self> {
        let (rate, burst_rate) = (as_f64(limit.rate), as_f64(limit.burst_rate));
        if limit.rate == 0 {
            return None;
        }
        let size = match limit.burst_rate {
            0 => rate * FREE_BURST_SECONDS,
            _ => burst_rate * as_f64(limit.burst_seconds),
        };
        let has_long_burst = limit.burst_rate > 0 && limit.burst_seconds > 1;
        Some(Bucket {
            long_run: Leaky::new(size, rate),
            burst: has_long_burst.then(|| Leaky::new(burst_rate * FREE_BURST_SECONDS, burst_rate)),
        })
    }

    /// Lets so many nanoseconds pass. Units that are missing for `debts` (not negative) are kept when it is empty. Returns the
    /// units that were not used, nor kept.
    pub fn leak(&mut self, ns: f64, debts: f64) -> f64 {
        if let Some(burst) = &mut self.burst {
            burst.leak(ns, debts);
        }
        self.long_run.leak(ns, debts)
    }

    /// Units that may pass now.
    pub fn room(&self) -> f64 {
        let burst = self.burst.map_or(f64::INFINITY, |burst| burst.room());
        self.long_run.room().min(burst)
    }

    /// Lets units pass, or takes back (negative) units that have not been used.
    pub fn add(&mut self, units: f64) {
        for leaky in std::iter::once(&mut self.long_run).chain(self.burst.as_mut()) {
            leaky.level += units;
        }
    }

    /// Units per nanosecond in the long run.
    pub fn rate(&self) -> f64 {
        self.long_run.rate
    }

    /// Nanoseconds until so many units may pass.
    pub fn ns_until_room(&self, units: f64) -> f64 {
        let burst = self.burst.map_or(0.0, |burst| burst.ns_until_room(units));
        self.long_run.ns_until_room(units).max(burst)
    }
}
