//! Histograms of durations on a logarithmic scale, with one writer or several.
//!
//! Each power of two has 16 buckets of one width, so that a value in the middle of its bucket is within 3 % of
//! any in it. Below 256 ticks buckets have 16 ticks. Finding a bucket takes no loop and no branch.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::single_writer_u64::SingleWriterU64;

/// Number of buckets. The last ends at 2^38 ticks, which are minutes, and also counts all longer durations.
pub const BUCKETS: usize = 31 * PER_POWER;

/// Buckets for each power of two.
const PER_POWER: usize = 1 << PER_POWER_BITS;
const PER_POWER_BITS: u32 = 4;

/// Buckets below the first power of two that has so many.
const LINEAR_BUCKETS: usize = PER_POWER;

/// Ticks of the narrowest bucket, as a power of two.
const NARROWEST_BITS: u32 = 4;

/// Counts of durations by one thread. All-zero bytes are an empty one.
pub type Histogram = HistogramOf<SingleWriterU64>;

/// Counts of durations by any number of threads, each with a locked instruction.
pub type SharedHistogram = HistogramOf<AtomicU64>;

/// The count of a bucket.
pub trait BucketCount: Default {
    /// Adds to it.
    fn add(&self, count: u64);

    /// Its value.
    fn get(&self) -> u64;
}

impl BucketCount for SingleWriterU64 {
    #[inline(always)]
    fn add(&self, count: u64) {
        self.add(count);
    }

    #[inline(always)]
    fn get(&self) -> u64 {
        self.get()
    }
}

impl BucketCount for AtomicU64 {
    #[inline]
    fn add(&self, count: u64) {
        self.fetch_add(count, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }
}

/// Counts of durations: [`Histogram`] or [`SharedHistogram`].
#[derive(Debug)]
#[repr(transparent)]
pub struct HistogramOf<C>([C; BUCKETS]);

impl<C: BucketCount> HistogramOf<C> {
    /// Counts `count` durations of so many ticks.
    #[inline]
    pub fn add_durations(&self, ticks: u64, count: u64) {
        let logarithmic = usize::try_from(logarithmic_bucket(ticks)).unwrap_or(usize::MAX);
        let bucket = self.0[LINEAR_BUCKETS..]
            .get(logarithmic)
            .unwrap_or_else(|| {
                let linear = usize::try_from(ticks >> NARROWEST_BITS).unwrap_or(usize::MAX);
                self.0[..LINEAR_BUCKETS]
                    .get(linear)
                    .unwrap_or(&self.0[BUCKETS - 1])
            });
        bucket.add(count);
    }

    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(C::get).fold(0, u64::wrapping_add)
    }

    /// The buckets that are not empty, from short to long: the first duration that is too long for the bucket, in ticks, and
    /// its count.
    pub fn nonempty_buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.0.iter().map(C::get);
        let ends = (0..).map(bucket_end);
        ends.zip(counts).filter(|(_, count)| *count > 0)
    }

    /// The [buckets that are not empty](Self::nonempty_buckets) in the sum of several histograms.
    pub fn nonempty_buckets_of_sum<'a>(all: impl Iterator<Item = &'a Self>) -> Vec<(u64, u64)>
    where
        C: 'a,
    {
        let mut sums = [0_u64; BUCKETS];
        for histogram in all {
            for (sum, count) in sums.iter_mut().zip(&histogram.0) {
                *sum = sum.wrapping_add(count.get());
            }
        }
        let ends = (0..).map(bucket_end);
        ends.zip(sums).filter(|(_, count)| *count > 0).collect()
    }
}

impl<C: BucketCount> Default for HistogramOf<C> {
    fn default() -> Self {
        HistogramOf(std::array::from_fn(|_| C::default()))
    }
}

/// The bucket of a duration, counted from the first power of two that has all its buckets; a huge number for shorter
/// durations.
///
/// The upper bits of a floating-point number are a logarithm with a linear fraction.
#[inline]
fn logarithmic_bucket(ticks: u64) -> u64 {
    const SHIFT: u32 = f64::MANTISSA_DIGITS - 1 - PER_POWER_BITS;
    let upper_bits = |number: f64| number.to_bits() >> SHIFT;
    let first = upper_bits(f64::from(1_u32 << (PER_POWER_BITS + NARROWEST_BITS)));
    // Signed, since processors convert those; a number too large for it gives a huge result as well.
    #[allow(clippy::cast_precision_loss)]
    let ticks = upper_bits(ticks.cast_signed() as f64);
    ticks.wrapping_sub(first)
}

/// The first duration behind a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let exponent = (bucket / PER_POWER).saturating_sub(1);
    let within = bucket - exponent * PER_POWER;
    ((within as u64 + 1) << exponent) << NARROWEST_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(ticks: u64) -> usize {
        let histogram = Histogram::default();
        histogram.add_durations(ticks, 1);
        let mut counts = histogram.0.iter();
        counts.position(|count| count.get() == 1).unwrap()
    }

    #[test]
    fn buckets_follow_one_another_without_gaps_and_are_narrow() {
        let mut begin = 0;
        for index in 0..BUCKETS {
            let end = bucket_end(index);
            assert!(begin < 256 || (end - begin) * 16 <= begin, "{end}");
            begin = end;
            assert_eq!(bucket(end - 1), index, "{end}");
            assert_eq!(bucket(end), (index + 1).min(BUCKETS - 1), "{end}");
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket_end(BUCKETS - 1), 1 << 38);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1, "nothing is lost");
    }

    #[test]
    fn what_is_counted_is_there() {
        let histogram = Histogram::default();
        histogram.add_durations(1000, 3);
        histogram.add_durations(1001, 2);
        histogram.add_durations(1 << 40, 7);
        assert_eq!(histogram.total(), 12);
        let counts: Vec<_> = histogram.nonempty_buckets().collect();
        assert_eq!(counts, [(1024, 5), (1 << 38, 7)]);
    }

    #[test]
    fn shared_histogram_loses_no_count_of_several_threads() {
        let histogram = SharedHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..100_000).for_each(|_| histogram.add_durations(1000, 1)));
            }
        });
        let counts: Vec<_> = histogram.nonempty_buckets().collect();
        assert_eq!(counts, [(1024, 200_000)]);
    }
}
