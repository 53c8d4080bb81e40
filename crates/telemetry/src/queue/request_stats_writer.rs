//! Counting of completed requests in the statistics of their queue, and in its histograms with configured boundaries.

use crate::queue::histograms::CachedBins;
use crate::queue::request_kind::RequestKind;
use crate::queue::stats::{KindStats, QueueStats};

/// Counts the requests of a running queue. It has the queue's references to configured histograms.
#[derive(Debug, Default)]
pub struct RequestStatsWriter {
    bins: CachedBins,
}

impl RequestStatsWriter {
    /// Counts requests that have succeeded after so many ticks each.
    #[inline]
    pub fn add_succeeded(
        &mut self,
        stats: &QueueStats,
        kind: RequestKind,
        requests: u64,
        bytes: u64,
        ticks: u64,
    ) {
        stats.of_kind(kind).add_succeeded(requests, bytes, ticks);
        if stats.configured_histograms().has_bins_to_count_or_drop() {
            self.add_to_configured_bins(stats, kind, requests, ticks);
        }
    }

    /// Counts them in the configured histograms as well.
    #[cold]
    fn add_to_configured_bins(
        &mut self,
        stats: &QueueStats,
        kind: RequestKind,
        requests: u64,
        ticks: u64,
    ) {
        self.bins
            .update_and_add(stats.configured_histograms(), kind, ticks, requests);
    }
}

impl KindStats {
    /// Counts requests of so many bytes in all that have succeeded after so many ticks each.
    #[inline]
    pub fn add_succeeded(&self, requests: u64, bytes: u64, ticks: u64) {
        self.bytes.add(bytes);
        self.ticks.add(ticks.wrapping_mul(requests));
        self.latency.add_durations(ticks, requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{BinBoundaries, Scale};
    use std::sync::Arc;

    #[test]
    fn counted_requests_are_in_the_statistics_and_in_configured_bins() {
        let (stats, mut writer) = (QueueStats::new(), RequestStatsWriter::default());
        writer.add_succeeded(&stats, RequestKind::Write, 2, 4096, 100);
        let boundaries = BinBoundaries::new(vec![u64::MAX], Scale::measure()).unwrap();
        let configured = Some(Arc::new(boundaries));
        stats
            .configured_histograms()
            .replace_or_remove_bins_of_kind(RequestKind::Write, configured);
        writer.add_succeeded(&stats, RequestKind::Write, 1, 512, 50);
        let write = stats.of_kind(RequestKind::Write);
        assert_eq!((write.bytes.get(), write.ticks.get()), (4608, 250));
        assert_eq!(write.latency.total(), 3);
        let bins = stats
            .configured_histograms()
            .bins_of_kind(RequestKind::Write)
            .unwrap();
        assert_eq!(bins.counts().sum::<u64>(), 1, "since it was configured");
    }
}
