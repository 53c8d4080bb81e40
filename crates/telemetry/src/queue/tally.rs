//! Counting of completed requests.

use crate::queue::histograms::HeldBins;
use crate::queue::stats::{Kind, KindStats, QueueStats};

/// What a running queue needs to count its requests: handles of the histograms that a user chose.
#[derive(Debug, Default)]
pub struct Tally {
    held: HeldBins,
}

impl Tally {
    /// Requests have succeeded after so many ticks each.
    #[inline]
    pub fn add(&mut self, stats: &QueueStats, kind: Kind, requests: u64, bytes: u64, ticks: u64) {
        stats.of(kind).succeeded(requests, bytes, ticks);
        if stats.histograms().wanted() {
            self.add_chosen(stats, kind, requests, ticks);
        }
    }

    #[cold]
    fn add_chosen(&mut self, stats: &QueueStats, kind: Kind, requests: u64, ticks: u64) {
        self.held.add(stats.histograms(), kind, ticks, requests);
    }
}

impl KindStats {
    /// Requests of so many bytes in all have succeeded after so many ticks each.
    #[inline]
    pub fn succeeded(&self, requests: u64, bytes: u64, ticks: u64) {
        self.bytes.add(bytes);
        self.ticks.add(ticks.wrapping_mul(requests));
        self.latency.add(ticks, requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Boundaries, Scale};
    use std::sync::Arc;

    #[test]
    fn what_is_tallied_is_in_the_figures_and_in_chosen_bins() {
        let (stats, mut tally) = (QueueStats::new(), Tally::default());
        tally.add(&stats, Kind::Write, 2, 4096, 100);
        let boundaries = Boundaries::new(vec![u64::MAX], Scale::new()).unwrap();
        let chosen = Some(Arc::new(boundaries));
        stats.histograms().set(Kind::Write, chosen);
        tally.add(&stats, Kind::Write, 1, 512, 50);
        let write = stats.of(Kind::Write);
        assert_eq!((write.bytes.get(), write.ticks.get()), (4608, 250));
        assert_eq!(write.latency.total(), 3);
        let bins = stats.histograms().of(Kind::Write).unwrap();
        assert_eq!(bins.counts().sum::<u64>(), 1, "since it was chosen");
    }
}
