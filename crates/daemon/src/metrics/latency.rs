//! Latencies of one kind of requests, in buckets that end at powers of two of a second.
//!
//! What is counted has 16 buckets for each power of two of the clock's ticks. One of them that reaches beyond
//! a bound counts above it, so bounds are exact to a sixteenth; counts and sums are exact.

use telemetry::counters::{Histogram, Scale};
use telemetry::queue::KindStats;

use crate::openmetrics::{Labels, Text};

/// The bounds, as powers of two of a second: from half a microsecond to 8 seconds.
const POWERS: std::ops::RangeInclusive<i32> = -21..=3;

/// As of one moment.
pub(super) struct Latency {
    /// Bounds in seconds, with how many requests took at most that long.
    pub below: Vec<(f64, u64)>,
    /// All requests.
    pub operations: u64,
    /// How long they took together.
    pub seconds: f64,
}

impl Latency {
    /// Of one that counts, or several together.
    pub fn of<'a>(stats: impl Iterator<Item = &'a KindStats> + Clone, scale: Scale) -> Self {
        let counts = Histogram::sum(stats.clone().map(|stats| &stats.latency));
        let ticks = stats.fold(0_u64, |sum, stats| sum.saturating_add(stats.ticks.get()));
        let counts: Vec<(f64, u64)> = counts
            .into_iter()
            .map(|(end, count)| (seconds(scale.to_ns(end)), count))
            .collect();
        let bounds = POWERS.map(|power| 2.0_f64.powi(power));
        let (mut below, mut sum, mut next) = (Vec::new(), 0, 0);
        for bound in bounds {
            while next < counts.len() && counts[next].0 <= bound {
                sum += counts[next].1;
                next += 1;
            }
            below.push((bound, sum));
        }
        let above: u64 = counts[next..].iter().map(|(_, count)| count).sum();
        Latency {
            below,
            operations: sum + above,
            seconds: seconds(scale.to_ns(ticks)),
        }
    }

    /// As samples of a family, if there are any: most guests never do some kinds.
    pub fn write(&self, labels: Labels<'_>, text: &mut Text) {
        if self.operations > 0 {
            text.histogram(labels, &self.below, self.operations, self.seconds);
        }
    }
}

/// Exact up to a hundred days, and nobody notices later.
#[allow(clippy::cast_precision_loss)]
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::queue::{Kind, QueueStats};

    #[test]
    fn every_request_is_in_one_bucket() {
        let queue = QueueStats::new();
        let stats = queue.of(Kind::Read);
        for ticks in [1, 1_000_000, u64::from(u32::MAX), u64::MAX] {
            stats.latency.add(ticks, 3);
        }
        let latency = Latency::of([stats].into_iter(), Scale::new());
        assert_eq!(latency.operations, 12);
        assert_eq!(latency.below.len(), 25);
        assert_eq!(
            latency.below[0].1, 3,
            "a tick is less than half a microsecond"
        );
        assert!(latency.below.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        assert_eq!(
            latency.below[24].1, 9,
            "only the longest takes over 8 seconds"
        );
        assert!(
            latency
                .below
                .windows(2)
                .all(|pair| pair[0].0 * 2.0 == pair[1].0)
        );
    }
}
