//! Latency histograms of a queue with boundaries that a user has configured.
//!
//! The queue's iothread writes the counts, like all its [statistics](crate::queue::QueueStats). But a monitor adds and removes
//! histograms while the queue runs, and the queue must never wait for the monitor. So the queue has its own references in
//! [`CachedBins`], and compares one number to see whether they are current: 0 when there are no histograms. If they are not
//! current, it updates them when the lock is free, and goes on with the old ones if it is not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::{BinBoundaries, Bins, SingleWriterU64};
use crate::queue::request_kind::RequestKind;

/// Bins by kind.
type KindBins = [Option<Arc<Bins>>; RequestKind::ALL.len()];

/// The histograms of a queue.
#[derive(Clone, Copy, Debug)]
pub struct ConfiguredHistograms<'a> {
    /// The current version; 0: there are no histograms. It only changes under the lock.
    current: &'a SingleWriterU64,
    configured: &'a Mutex<ConfiguredBins>,
}

/// The configured histograms of a queue.
#[derive(Debug, Default)]
pub(crate) struct ConfiguredBins {
    /// Count of changes, the version of the next one.
    changes: u64,
    bins: KindBins,
}

impl<'a> ConfiguredHistograms<'a> {
    /// A view of a queue's histograms and their version.
    #[inline]
    pub(crate) fn new(current: &'a SingleWriterU64, configured: &'a Mutex<ConfiguredBins>) -> Self {
        ConfiguredHistograms {
            current,
            configured,
        }
    }

    /// Replaces the bins of a kind of requests by new, empty ones, or removes them. Other kinds keep theirs.
    pub fn replace_or_remove_bins_of_kind(
        self,
        kind: RequestKind,
        boundaries: Option<Arc<BinBoundaries>>,
    ) {
        let bins = boundaries.map(|boundaries| Arc::new(Bins::new(boundaries)));
        let mut configured = self.lock_configured();
        configured.bins[kind as usize] = bins;
        configured.changes += 1;
        self.current.set(configured.changes);
    }

    /// The bins that requests of a kind count in.
    #[must_use]
    pub fn bins_of_kind(self, kind: RequestKind) -> Option<Arc<Bins>> {
        self.lock_configured().bins[kind as usize].clone()
    }

    /// Whether the queue has to count in bins, or to drop the last ones.
    #[inline]
    pub(crate) fn has_bins_to_count_or_drop(self) -> bool {
        self.current.get() != 0
    }

    /// Locks the configured histograms, also after a panic.
    fn lock_configured(self) -> MutexGuard<'a, ConfiguredBins> {
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue's references to the bins of its [`ConfiguredHistograms`].
#[derive(Debug, Default)]
pub(crate) struct CachedBins {
    /// The version of the bins.
    version: u64,
    bins: KindBins,
}

impl CachedBins {
    /// Counts requests of a kind that took so many ticks. To be called while there
    /// [may be bins](ConfiguredHistograms::has_bins_to_count_or_drop).
    pub fn update_and_add(
        &mut self,
        from: ConfiguredHistograms<'_>,
        kind: RequestKind,
        ticks: u64,
        requests: u64,
    ) {
        if self.version != from.current.get() {
            self.try_update_bins(from);
        }
        if let Some(bins) = &self.bins[kind as usize] {
            bins.add_durations(ticks, requests);
        }
    }

    /// Takes the current bins, if the lock is free; otherwise the old ones stay until the next request.
    fn try_update_bins(&mut self, from: ConfiguredHistograms<'_>) {
        // The lock is taken for moments only, so the next request will get it.
        let Ok(configured) = from.configured.try_lock() else {
            return;
        };
        self.bins.clone_from(&configured.bins);
        let has_bins = configured.bins.iter().any(Option::is_some);
        self.version = if has_bins { configured.changes } else { 0 };
        // Without bins the version becomes 0, and this is not called any more.
        from.current.set(self.version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Scale;

    fn boundaries(ns: &[u64]) -> Option<Arc<BinBoundaries>> {
        Some(Arc::new(
            BinBoundaries::new(ns.to_vec(), Scale::measure()).unwrap(),
        ))
    }

    fn counts(histograms: ConfiguredHistograms<'_>, kind: RequestKind) -> Vec<u64> {
        histograms.bins_of_kind(kind).unwrap().counts().collect()
    }

    #[test]
    fn a_kind_counts_from_when_it_is_set_to_when_it_is_not() {
        let (current, configured) = Default::default();
        let (histograms, mut held) = (
            ConfiguredHistograms::new(&current, &configured),
            CachedBins::default(),
        );
        assert!(!histograms.has_bins_to_count_or_drop());
        histograms.replace_or_remove_bins_of_kind(RequestKind::Read, boundaries(&[1_000_000]));
        assert!(histograms.has_bins_to_count_or_drop());
        held.update_and_add(histograms, RequestKind::Read, 0, 2);
        held.update_and_add(histograms, RequestKind::Write, 0, 2);
        histograms.replace_or_remove_bins_of_kind(RequestKind::Write, boundaries(&[]));
        held.update_and_add(histograms, RequestKind::Read, u64::MAX, 3);
        held.update_and_add(histograms, RequestKind::Write, 0, 5);
        assert_eq!(counts(histograms, RequestKind::Read), [2, 3]);
        assert_eq!(counts(histograms, RequestKind::Write), [5]);

        // Set again, it begins at nothing.
        histograms.replace_or_remove_bins_of_kind(RequestKind::Read, boundaries(&[1, 2]));
        held.update_and_add(histograms, RequestKind::Read, 0, 1);
        assert_eq!(counts(histograms, RequestKind::Read), [1, 0, 0]);

        let bins = histograms.bins_of_kind(RequestKind::Read).unwrap();
        histograms.replace_or_remove_bins_of_kind(RequestKind::Read, None);
        histograms.replace_or_remove_bins_of_kind(RequestKind::Write, None);
        assert!(histograms.has_bins_to_count_or_drop(), "it is still held");
        held.update_and_add(histograms, RequestKind::Read, 0, 1);
        assert!(!histograms.has_bins_to_count_or_drop());
        assert_eq!(Arc::strong_count(&bins), 1);
        assert!(histograms.bins_of_kind(RequestKind::Read).is_none());

        histograms.replace_or_remove_bins_of_kind(RequestKind::Read, boundaries(&[]));
        held.update_and_add(histograms, RequestKind::Read, 0, 4);
        assert_eq!(counts(histograms, RequestKind::Read), [4]);
    }

    #[test]
    fn a_queue_does_not_wait_for_a_thread_that_changes_its_histograms() {
        let (current, configured) = Default::default();
        let (histograms, mut held) = (
            ConfiguredHistograms::new(&current, &configured),
            CachedBins::default(),
        );
        histograms.replace_or_remove_bins_of_kind(RequestKind::Flush, boundaries(&[]));
        held.update_and_add(histograms, RequestKind::Flush, 0, 1);
        histograms.replace_or_remove_bins_of_kind(RequestKind::Unmap, boundaries(&[]));
        let changing = histograms.lock_configured();
        held.update_and_add(histograms, RequestKind::Unmap, 0, 1);
        held.update_and_add(histograms, RequestKind::Flush, 0, 1);
        drop(changing);
        held.update_and_add(histograms, RequestKind::Unmap, 0, 1);
        assert_eq!(counts(histograms, RequestKind::Flush), [2]);
        assert_eq!(counts(histograms, RequestKind::Unmap), [1]);
    }

    /// A queue that is started anew holds nothing yet.
    #[test]
    fn the_next_to_hold_them_goes_on_where_the_last_one_was() {
        let (current, configured) = Default::default();
        let histograms = ConfiguredHistograms::new(&current, &configured);
        histograms.replace_or_remove_bins_of_kind(RequestKind::Read, boundaries(&[]));
        for _ in 0..3 {
            CachedBins::default().update_and_add(histograms, RequestKind::Read, 0, 1);
        }
        assert_eq!(counts(histograms, RequestKind::Read), [3]);
    }
}
