//! Latency histograms: counts in buckets, their sums, the difference of two samples, and percentiles.

/// Non-empty buckets as (exclusive end, count), sorted by end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram(Vec<(u64, u64)>);

/// Whether two ends belong to the same bucket. Neighbouring ends are at least 3 % apart; the same end varies a little,
/// because the daemon recalibrates its clock.
fn is_same_bucket(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= one.max(other) / 100
}

impl Histogram {
    /// The histogram with the bucket ends and counts that the monitor reports.
    pub fn from_bucket_ends_and_counts(
        ends: impl Iterator<Item = u64>,
        counts: impl Iterator<Item = u64>,
    ) -> Self {
        let mut buckets: Vec<(u64, u64)> = ends.zip(counts).collect();
        buckets.sort_unstable();
        Histogram(buckets)
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for &(end, count) in &other.0 {
            let at = self.0.partition_point(|&(mine, _)| mine < end);
            let neighbours = [at.checked_sub(1), Some(at)].into_iter().flatten();
            let mut candidates = neighbours.filter(|&index| {
                self.0
                    .get(index)
                    .is_some_and(|&(mine, _)| is_same_bucket(mine, end))
            });
            match candidates.next() {
                Some(index) => self.0[index].1 += count,
                None => self.0.insert(at, (end, count)),
            }
        }
    }

    /// Counts since an earlier sample.
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let earlier_count = |end: u64| {
            let found = earlier
                .0
                .iter()
                .find(|&&(other, _)| is_same_bucket(other, end));
            found.map_or(0, |&(_, count)| count)
        };
        let differences = self
            .0
            .iter()
            .map(|&(end, count)| (end, count.saturating_sub(earlier_count(end))));
        Histogram(differences.filter(|&(_, count)| count > 0).collect())
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|&(_, count)| count).sum()
    }

    /// The time in nanoseconds that `percent` of the requests did not exceed; `None` without requests.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = self.count() as f64 * percent / 100.0;
        let mut count_below = 0;
        for &(end, count) in &self.0 {
            if (count_below + count) as f64 >= rank {
                // With 16 buckets per power of two, a bucket is a 17th to a 32nd of its end wide.
                let start = end as f64 * (1.0 - 1.0 / 24.0);
                let share = (rank - count_below as f64) / count as f64;
                return Some(start + share * (end as f64 - start));
            }
            count_below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(buckets: &[(u64, u64)]) -> Histogram {
        let (ends, counts): (Vec<_>, Vec<_>) = buckets.iter().copied().unzip();
        Histogram::from_bucket_ends_and_counts(ends.into_iter(), counts.into_iter())
    }

    #[test]
    fn percentiles_lie_in_their_bucket() {
        assert_eq!(Histogram::default().percentile(50.0), None);
        let histogram = of(&[(1000, 50), (2000, 49), (9000, 1)]);
        for (percent, from, to) in [
            (1.0, 950.0, 1000.0),
            (50.0, 999.0, 1000.0),
            (60.0, 1910.0, 2000.0),
            (99.0, 1999.0, 2000.0),
            (99.9, 8600.0, 9000.0),
            (100.0, 8999.0, 9000.0),
        ] {
            let ns = histogram.percentile(percent).unwrap();
            assert!((from..=to).contains(&ns), "{percent}: {ns}");
        }
    }

    #[test]
    fn difference_of_histograms_tolerates_slightly_different_bucket_ends() {
        let before = of(&[(1000, 5), (2000, 7)]);
        let now = of(&[(1001, 9), (2000, 7), (4000, 1)]);
        assert_eq!(now.since(&before), of(&[(1001, 4), (4000, 1)]));
        assert_eq!(before.since(&now), Histogram::default());
    }

    #[test]
    fn histograms_of_several_queues_add_up() {
        let mut sum = of(&[(1000, 1), (3000, 1)]);
        sum.add(&of(&[(999, 1), (2000, 5), (3001, 2)]));
        assert_eq!(sum, of(&[(1000, 2), (2000, 5), (3000, 3)]));
    }
}
