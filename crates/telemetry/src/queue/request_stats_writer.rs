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
