//! Histograms of durations with configured boundaries, with one writer.
//!
//! [`Histogram`](crate::counters::Histogram) has fixed buckets, and finds one without a search. Here it takes a binary search.
//! The boundaries are kept in nanoseconds, as they were configured, and in ticks, for the comparison.

use std::sync::Arc;

use crate::counters::{Scale, SingleWriterU64};

/// Most boundaries: with their counts they take 16 KiB, half of a first-level cache.
pub const MAX_BOUNDARIES: usize = 1024;

/// The durations at which one bin ends and the next one begins.
#[derive(Debug)]
pub struct BinBoundaries {
    ns: Box<[u64]>,
    ticks: Box<[u64]>,
}

/// Why boundaries are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundariesError {
    /// There are more than [`MAX_BOUNDARIES`].
    #[error("there are {0} of them, at most {MAX_BOUNDARIES} are supported")]
    TooMany(usize),
    /// One is not larger than the one before it.
    #[error("{next} follows {before}: they must grow, from above 0")]
    Order {
        /// The one before; 0 before the first.
        before: u64,
        /// The one that is not larger.
        next: u64,
    },
}

impl BinBoundaries {
    /// Boundaries from nanoseconds; `scale` converts them into ticks.
    ///
    /// # Errors
    /// [`BoundariesError`].
    pub fn new(ns: Vec<u64>, scale: Scale) -> Result<Self, BoundariesError> {
        if ns.len() > MAX_BOUNDARIES {
            return Err(BoundariesError::TooMany(ns.len()));
        }
        let mut before = 0;
        for &next in &ns {
            if next <= before {
                return Err(BoundariesError::Order { before, next });
            }
            before = next;
        }
        let ticks = ns.iter().map(|&ns| scale.to_ticks_rounded_up(ns)).collect();
        let ns = ns.into();
        Ok(BinBoundaries { ns, ticks })
    }

    /// The boundaries in nanoseconds.
    #[must_use]
    pub fn ns(&self) -> &[u64] {
        &self.ns
    }
}

/// Counts of durations, one more than there are boundaries. A duration equal to a boundary counts in the bin that begins
/// there.
#[derive(Debug)]
pub struct Bins {
    boundaries: Arc<BinBoundaries>,
    counts: Box<[SingleWriterU64]>,
}

impl Bins {
    /// Empty bins.
    #[must_use]
    pub fn new(boundaries: Arc<BinBoundaries>) -> Self {
        let counts = (0..=boundaries.ns.len()).map(|_| SingleWriterU64::default());
        Bins {
            counts: counts.collect(),
            boundaries,
        }
    }

    /// Counts `count` durations of so many ticks.
    pub fn add_durations(&self, ticks: u64, count: u64) {
        let ends = &self.boundaries.ticks;
        self.counts[ends.partition_point(|&end| end <= ticks)].add(count);
    }

    /// The durations at which one bin ends and the next one begins.
    #[must_use]
    pub fn bin_boundaries(&self) -> &BinBoundaries {
        &self.boundaries
    }

    /// All counts, from short to long.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(SingleWriterU64::get)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn boundaries(ns: &[u64]) -> Result<BinBoundaries, BoundariesError> {
        BinBoundaries::new(ns.to_vec(), Scale::measure())
    }

    #[test]
    fn only_what_grows_from_above_nothing_is_taken() {
        let order = |before, next| Some(BoundariesError::Order { before, next });
        assert_eq!(boundaries(&[0]).err(), order(0, 0));
        assert_eq!(boundaries(&[5, 5]).err(), order(5, 5));
        assert_eq!(boundaries(&[5, 7, 6]).err(), order(7, 6));
        let many: Vec<u64> = (1..=1025).collect();
        assert_eq!(
            boundaries(&many).err(),
            Some(BoundariesError::TooMany(1025))
        );
        assert_eq!(boundaries(&many[1..]).unwrap().ns(), &many[1..]);
        assert_eq!(boundaries(&[5, u64::MAX]).unwrap().ns(), [5, u64::MAX]);
    }

    proptest! {
        /// The bin of a duration in nanoseconds, by a linear search.
        #[test]
        fn a_duration_counts_between_the_boundaries_around_it(
            ends in proptest::collection::btree_set(1_u64..100, 0..50),
            ticks in 0_u64..400,
        ) {
            let ends: Vec<u64> = ends.into_iter().collect();
            let scale = Scale::measure();
            let bins = Bins::new(Arc::new(BinBoundaries::new(ends.clone(), scale).unwrap()));
            bins.add_durations(ticks, 7);
            let ns = scale.to_ns(ticks);
            let begins = std::iter::once(&0).chain(&ends);
            let counts = begins.zip(bins.counts().enumerate()).map(|(&begin, (i, count))| {
                let within = begin <= ns && ends.get(i).is_none_or(|&end| ns < end);
                (count, if within { 7 } else { 0 })
            });
            for (count, expected) in counts {
                prop_assert_eq!(count, expected);
            }
        }
    }
}
