//! Latency histograms of a queue with boundaries that a user chose, while there are any.
//!
//! Counts are written by the queue's iothread, like all its [figures](crate::queue::QueueStats). But bins come and go while it
//! runs, and it must never wait for a monitor that changes them. So the queue has its own handles of them in [`HeldBins`], and looks at one
//! number for whether they are still the ones: 0 when there is nothing to hold. If they are not, it gets the new ones when
//! the lock happens to be free, and goes on with the old ones if it is not.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::{Bins, Boundaries, Counter};
use crate::queue::Kind;

/// Bins by kind.
type KindBins = [Option<Arc<Bins>>; Kind::ALL.len()];

/// The histograms of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Histograms<'a> {
    /// Which choice the queue has to hold; 0: none. Only changed under the lock.
    current: &'a Counter,
    chosen: &'a Mutex<Chosen>,
}

/// What was chosen for a queue.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// How often anything was chosen.
    choices: u64,
    bins: KindBins,
}

impl<'a> Histograms<'a> {
    #[inline]
    pub(crate) fn new(current: &'a Counter, chosen: &'a Mutex<Chosen>) -> Self {
        Histograms { current, chosen }
    }

    /// Requests of a kind count in new, empty bins from now on, or in none. What other kinds have stays.
    pub fn set(self, kind: Kind, boundaries: Option<Arc<Boundaries>>) {
        let bins = boundaries.map(|boundaries| Arc::new(Bins::new(boundaries)));
        let mut chosen = self.lock();
        chosen.bins[kind as usize] = bins;
        chosen.choices += 1;
        self.current.set(chosen.choices);
    }

    /// The bins that requests of a kind count in.
    #[must_use]
    pub fn of(self, kind: Kind) -> Option<Arc<Bins>> {
        self.lock().bins[kind as usize].clone()
    }

    /// Whether a queue has anything to do here: to count in bins, or to give them up.
    #[inline]
    pub(crate) fn wanted(self) -> bool {
        self.current.get() != 0
    }

    fn lock(self) -> MutexGuard<'a, Chosen> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a queue holds of its [`Histograms`].
#[derive(Debug, Default)]
pub(crate) struct HeldBins {
    /// Which choice it is.
    choice: u64,
    bins: KindBins,
}

impl HeldBins {
    /// So many requests of a kind took so many ticks. Only called while it is [wanted](Histograms::wanted).
    pub fn add(&mut self, from: Histograms<'_>, kind: Kind, ticks: u64, requests: u64) {
        if self.choice != from.current.get() {
            self.update(from);
        }
        if let Some(bins) = &self.bins[kind as usize] {
            bins.add(ticks, requests);
        }
    }

    fn update(&mut self, from: Histograms<'_>) {
        // Whoever has it holds it for a moment: there is a next time.
        let Ok(chosen) = from.chosen.try_lock() else {
            return;
        };
        self.bins.clone_from(&chosen.bins);
        let any = chosen.bins.iter().any(Option::is_some);
        self.choice = if any { chosen.choices } else { 0 };
        // The last ones are given up: from now on it is not asked for.
        from.current.set(self.choice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Scale;

    fn boundaries(ns: &[u64]) -> Option<Arc<Boundaries>> {
        Some(Arc::new(
            Boundaries::new(ns.to_vec(), Scale::new()).unwrap(),
        ))
    }

    fn counts(histograms: Histograms<'_>, kind: Kind) -> Vec<u64> {
        histograms.of(kind).unwrap().counts().collect()
    }

    #[test]
    fn a_kind_counts_from_when_it_is_set_to_when_it_is_not() {
        let (current, chosen) = Default::default();
        let (histograms, mut held) = (Histograms::new(&current, &chosen), HeldBins::default());
        assert!(!histograms.wanted());
        histograms.set(Kind::Read, boundaries(&[1_000_000]));
        assert!(histograms.wanted());
        held.add(histograms, Kind::Read, 0, 2);
        held.add(histograms, Kind::Write, 0, 2);
        histograms.set(Kind::Write, boundaries(&[]));
        held.add(histograms, Kind::Read, u64::MAX, 3);
        held.add(histograms, Kind::Write, 0, 5);
        assert_eq!(counts(histograms, Kind::Read), [2, 3]);
        assert_eq!(counts(histograms, Kind::Write), [5]);

        // Set again, it begins at nothing.
        histograms.set(Kind::Read, boundaries(&[1, 2]));
        held.add(histograms, Kind::Read, 0, 1);
        assert_eq!(counts(histograms, Kind::Read), [1, 0, 0]);

        let bins = histograms.of(Kind::Read).unwrap();
        histograms.set(Kind::Read, None);
        histograms.set(Kind::Write, None);
        assert!(histograms.wanted(), "it is still held");
        held.add(histograms, Kind::Read, 0, 1);
        assert!(!histograms.wanted());
        assert_eq!(Arc::strong_count(&bins), 1);
        assert!(histograms.of(Kind::Read).is_none());

        histograms.set(Kind::Read, boundaries(&[]));
        held.add(histograms, Kind::Read, 0, 4);
        assert_eq!(counts(histograms, Kind::Read), [4]);
    }

    #[test]
    fn a_queue_does_not_wait_for_who_changes_them() {
        let (current, chosen) = Default::default();
        let (histograms, mut held) = (Histograms::new(&current, &chosen), HeldBins::default());
        histograms.set(Kind::Flush, boundaries(&[]));
        held.add(histograms, Kind::Flush, 0, 1);
        histograms.set(Kind::Unmap, boundaries(&[]));
        let changing = histograms.lock();
        held.add(histograms, Kind::Unmap, 0, 1);
        held.add(histograms, Kind::Flush, 0, 1);
        drop(changing);
        held.add(histograms, Kind::Unmap, 0, 1);
        assert_eq!(counts(histograms, Kind::Flush), [2]);
        assert_eq!(counts(histograms, Kind::Unmap), [1]);
    }

    /// A queue that is started anew holds nothing yet.
    #[test]
    fn the_next_to_hold_them_goes_on_where_the_last_one_was() {
        let (current, chosen) = Default::default();
        let histograms = Histograms::new(&current, &chosen);
        histograms.set(Kind::Read, boundaries(&[]));
        for _ in 0..3 {
            HeldBins::default().add(histograms, Kind::Read, 0, 1);
        }
        assert_eq!(counts(histograms, Kind::Read), [3]);
    }
}
