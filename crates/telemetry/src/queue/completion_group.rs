//! Groups of completed requests that are added to the statistics together.
//!
//! Requests that were admitted together and complete together took the same time, so they are summed up and added once.

use crate::queue::{AdmitTimeAndKind, QueueStats, RequestKind, RequestStatsWriter};

/// Successful requests of one admission and kind that are not yet in the statistics.
#[derive(Debug, Default)]
pub struct CompletionGroup {
    admitted: AdmitTimeAndKind,
    requests: u64,
    bytes: u64,
    /// The time of their completion, in ticks.
    now: u64,
    writer: RequestStatsWriter,
}

impl CompletionGroup {
    /// Adds requests of so many bytes in all, which were admitted together and have completed `now`. Requests of another
    /// admission or kind are added to the statistics first.
    #[inline]
    pub fn add_and_drain_others(
        &mut self,
        admitted: AdmitTimeAndKind,
        requests: u32,
        bytes: u64,
        now: u64,
        stats: &QueueStats,
    ) {
        if admitted != self.admitted {
            self.drain_into_stats(stats);
            (self.admitted, self.now) = (admitted, now);
        }
        self.requests += u64::from(requests);
        self.bytes += bytes;
    }

    /// Adds the group to the statistics, and empties it.
    #[inline]
    pub fn drain_into_stats(&mut self, stats: &QueueStats) {
        if self.requests > 0 {
            let (kind, ticks) = (self.admitted.kind(), self.admitted.ticks_until(self.now));
            self.writer
                .add_succeeded(stats, kind, self.requests, self.bytes, ticks);
            stats.last_success_ticks().set(self.now);
        }
        (self.admitted, self.requests, self.bytes) = (AdmitTimeAndKind::default(), 0, 0);
    }

    /// Whether the group has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Counts a request that has succeeded without the disk, in no time.
    pub fn count_success_without_disk(&mut self, kind: RequestKind, stats: &QueueStats) {
        self.writer.add_succeeded(stats, kind, 1, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_length_count() {
        let stats = QueueStats::new();
        let mut group = CompletionGroup::default();
        let long = 1 << 45;
        for (admitted, now) in [(long, 4000), (4000, 4100), (4000, 4000 + long)] {
            let admitted = AdmitTimeAndKind::from_ticks(admitted).with_kind(RequestKind::Unmap);
            group.add_and_drain_others(admitted, 1, 1, now, &stats);
            group.drain_into_stats(&stats);
        }
        let unmap = stats.of_kind(RequestKind::Unmap);
        assert_eq!((unmap.bytes.get(), unmap.ticks.get()), (3, 100 + long));
        let counts: Vec<_> = unmap.latency.nonempty_buckets().collect();
        assert_eq!(counts, [(16, 1), (112, 1), (1 << 38, 1)]);
    }
}
