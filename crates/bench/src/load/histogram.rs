//! Latencies, counted: how many were how long, to within one part in 64.
//!
//! Buckets grow with the value (64 of the same width between two powers of two), so counting is a
//! shift and an addition, whatever the range. Nothing is allocated after the beginning.

/// Buckets between two powers of two, as a power of two.
const SUB_BUCKET_BITS: u32 = 6;
const SUB_BUCKETS: usize = 1 << SUB_BUCKET_BITS;
/// Longer ones count as this long: 68 s, where nobody waits any more.
const MAX_NS: u64 = (1 << 36) - 1;
const BUCKETS: usize = bucket(MAX_NS) + 1;

/// How many latencies there were of each length.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            max_ns: 0,
        }
    }
}

impl Histogram {
    /// One more.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.max_ns = self.max_ns.max(ns);
        self.counts[bucket(ns.min(MAX_NS))] += 1;
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: &Histogram) {
        self.max_ns = self.max_ns.max(other.max_ns);
        for (count, other) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count += other;
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.max_ns = 0;
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest, exactly; 0 of none.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// As long or shorter were `percent` of them, from 0 to 100: the middle of the bucket, so at
    /// most one part in 128 off; 0 of none.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0);
        let mut seen = 0.0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count as f64;
            if seen >= rank {
                return middle(index).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

/// The bucket of a value: below 128 each has its own.
#[inline]
const fn bucket(ns: u64) -> usize {
    let shift = 63 - SUB_BUCKET_BITS - (ns | SUB_BUCKETS as u64).leading_zeros();
    // At most MAX_NS comes here: far below 2^32.
    #[allow(clippy::cast_possible_truncation)]
    let index = (ns >> shift) as usize;
    ((shift as usize) << SUB_BUCKET_BITS) + index
}

/// The middle of a bucket's values.
fn middle(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BUCKET_BITS).saturating_sub(1);
    let first = (bucket - (shift << SUB_BUCKET_BITS)) as u64;
    (first << shift) + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut random = Random::new(7);
        // Three distributions: short, wide, and with a tail.
        for bound in [100, 1_000_000, 40_000_000_000] {
            let mut histogram = Histogram::default();
            let mut values: Vec<u64> = (0..20_000u64)
                .map(|index| {
                    let value = random.below(bound);
                    if index % 100 == 0 {
                        value * 10 % MAX_NS
                    } else {
                        value
                    }
                })
                .collect();
            for &value in &values {
                histogram.record(value);
            }
            values.sort_unstable();
            for percent in [0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
                let rank = (values.len() as f64 * percent / 100.0).ceil().max(1.0);
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let exact = values[rank as usize - 1];
                let found = histogram.percentile_ns(percent);
                let off = found.abs_diff(exact) as f64;
                assert!(
                    off <= exact as f64 / 128.0 + 1.0,
                    "{percent} %: {found} for {exact}"
                );
            }
            assert_eq!(histogram.max_ns(), values[values.len() - 1]);
            assert_eq!(histogram.count(), 20_000);
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut last = 0;
        for ns in 0..100_000 {
            let now = bucket(ns);
            assert!(now == last || now == last + 1, "{ns}");
            last = now;
        }
        assert_eq!(bucket(MAX_NS), BUCKETS - 1);
        for index in 0..BUCKETS {
            assert_eq!(bucket(middle(index)), index);
        }
    }

    #[test]
    fn sums_and_extremes() {
        let mut one = Histogram::default();
        assert_eq!((one.percentile_ns(50.0), one.max_ns()), (0, 0));
        one.record(10);
        let mut other = Histogram::default();
        other.record(u64::MAX);
        one.add(&other);
        assert_eq!((one.count(), one.max_ns()), (2, u64::MAX));
        assert_eq!(one.percentile_ns(50.0), 10);
        one.clear();
        assert_eq!((one.count(), one.max_ns()), (0, 0));
    }
}
