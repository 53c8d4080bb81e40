//! Latency histogram of one kind of requests for metrics: converts the counters' buckets to bounds at powers of two of a second.
//!
//! The counters have 16 buckets for each power of two of clock ticks. A bucket that crosses a bound is counted above
//! it, so bounds are exact to a sixteenth; counts and sums are exact.

use telemetry::counters::{Histogram, Scale};
use telemetry::queue::KindStats;

use crate::openmetrics::{Labels, MetricsTextEncoder};

/// The bounds, as powers of two of a second: from half a microsecond to 8 seconds.
const BOUND_POWERS: std::ops::RangeInclusive<i32> = -21..=3;

/// A latency histogram, read from counters at one moment.
pub(super) struct LatencyHistogram {
    /// Upper bounds in seconds with the count of requests that took at most that long.
    pub buckets: Vec<(f64, u64)>,
    /// Count of all requests.
    pub operations: u64,
    /// Sum of their latencies.
    pub sum_seconds: f64,
}

impl LatencyHistogram {
    /// The histogram of one or several counters together.
    pub fn from_counters<'a>(
        stats: impl Iterator<Item = &'a KindStats> + Clone,
        scale: Scale,
    ) -> Self {
        let counts = Histogram::nonempty_buckets_of_sum(stats.clone().map(|stats| &stats.latency));
        let ticks = stats.fold(0_u64, |sum, stats| sum.saturating_add(stats.ticks.get()));
        let counts = counts.into_iter();
        let counts = counts.map(|(end, count)| (scale.to_ns(end), count));
        LatencyHistogram::from_buckets(counts, scale.to_ns(ticks))
    }

    /// The histogram of counts by ends of their buckets, in nanoseconds, which take so many nanoseconds together.
    pub fn from_buckets(counts: impl Iterator<Item = (u64, u64)>, sum_ns: u64) -> Self {
        let counts: Vec<(f64, u64)> = counts
            .map(|(end, count)| (ns_to_seconds(end), count))
            .collect();
        let bounds = BOUND_POWERS.map(|power| 2.0_f64.powi(power));
        let (mut buckets, mut sum, mut next) = (Vec::new(), 0, 0);
        for bound in bounds {
            while next < counts.len() && counts[next].0 <= bound {
                sum += counts[next].1;
                next += 1;
            }
            buckets.push((bound, sum));
        }
        let above: u64 = counts[next..].iter().map(|(_, count)| count).sum();
        LatencyHistogram {
            buckets,
            operations: sum + above,
            sum_seconds: ns_to_seconds(sum_ns),
        }
    }

    /// Writes the samples, unless the histogram is empty: most guests never use some kinds of requests.
    pub fn write_samples_if_used(&self, labels: Labels<'_>, out: &mut MetricsTextEncoder) {
        if self.operations > 0 {
            out.add_histogram(labels, &self.buckets, self.operations, self.sum_seconds);
        }
    }
}

/// Converts nanoseconds to seconds; exact up to a hundred days, which is enough.
#[allow(clippy::cast_precision_loss)]
pub(super) fn ns_to_seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::queue::{QueueStats, RequestKind};

    #[test]
    fn cumulative_buckets_count_every_request() {
        let queue = QueueStats::new();
        let stats = queue.of_kind(RequestKind::Read);
        for ticks in [1, 1_000_000, u64::from(u32::MAX), u64::MAX] {
            stats.latency.add_durations(ticks, 3);
        }
        let latency = LatencyHistogram::from_counters([stats].into_iter(), Scale::measure());
        assert_eq!(latency.operations, 12);
        assert_eq!(latency.buckets.len(), 25);
        assert_eq!(
            latency.buckets[0].1, 3,
            "a tick is less than half a microsecond"
        );
        assert!(
            latency
                .buckets
                .windows(2)
                .all(|pair| pair[0].1 <= pair[1].1)
        );
        assert_eq!(
            latency.buckets[24].1, 9,
            "only the longest takes over 8 seconds"
        );
        assert!(
            latency
                .buckets
                .windows(2)
                .all(|pair| pair[0].0 * 2.0 == pair[1].0)
        );
    }
}
