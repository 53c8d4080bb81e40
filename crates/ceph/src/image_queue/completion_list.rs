//! A list of completions to which any thread adds without a lock, and from which its owner takes all at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::request_stats::now_in_ticks;

/// The end of the list.
const END: u32 = u32::MAX;

/// The completion of one slot.
struct Entry {
    /// The next older completion, or [`END`].
    next: AtomicU32,
    /// What librbd has returned.
    returned: AtomicI64,
    /// When it was complete, in ticks.
    completed_at: AtomicU64,
}

/// Completions of a fixed number of slots, each of which is in the list at most once.
pub(super) struct CompletionList {
    entries: Box<[Entry]>,
    /// The latest completion, or [`END`].
    latest: AtomicU32,
    /// Called by the thread that adds to an empty list.
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl CompletionList {
    /// An empty list.
    pub(super) fn new(slots: usize, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let entry = || Entry {
            next: AtomicU32::new(END),
            returned: AtomicI64::new(0),
            completed_at: AtomicU64::new(0),
        };
        Self {
            entries: std::iter::repeat_with(entry).take(slots).collect(),
            latest: AtomicU32::new(END),
            wake,
        }
    }

    /// Adds a slot, which is not in the list; wakes the owner if the list was empty.
    pub(super) fn push(&self, slot: u32, returned: i64) {
        let entry = &self.entries[slot as usize];
        entry.returned.store(returned, Ordering::Relaxed);
        entry.completed_at.store(now_in_ticks(), Ordering::Relaxed);
        let mut latest = self.latest.load(Ordering::Relaxed);
        loop {
            entry.next.store(latest, Ordering::Relaxed);
            // Release: the owner sees the entry, and what was read into buffers.
            match self.latest.compare_exchange_weak(
                latest,
                slot,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(other) => latest = other,
            }
        }
        if latest == END {
            (self.wake)();
        }
    }

    /// Whether there is no completion.
    pub(super) fn is_empty(&self) -> bool {
        self.latest.load(Ordering::Relaxed) == END
    }

    /// Takes all completions, the latest first: passes slots, what librbd has returned, and when they were complete, in ticks.
    pub(super) fn take(&self, mut each: impl FnMut(u32, i64, u64)) {
        if self.is_empty() {
            return;
        }
        let mut next = self.latest.swap(END, Ordering::Acquire);
        while next != END {
            let (slot, entry) = (next, &self.entries[next as usize]);
            // Before the slot is used again.
            next = entry.next.load(Ordering::Relaxed);
            let completed_at = entry.completed_at.load(Ordering::Relaxed);
            each(slot, entry.returned.load(Ordering::Relaxed), completed_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use test_support::deadline::Deadline;

    use super::*;

    fn taken(list: &CompletionList) -> Vec<(u32, i64)> {
        let mut all = Vec::new();
        list.take(|slot, returned, _| all.push((slot, returned)));
        all
    }

    #[test]
    fn the_owner_is_woken_once_per_batch_and_takes_the_latest_first() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&wakes);
        let wake = move || _ = count.fetch_add(1, Ordering::Relaxed);
        let list = CompletionList::new(4, Arc::new(wake));
        assert!(list.is_empty() && taken(&list).is_empty());
        for batch in 1..=2 {
            for slot in [2, 0, 3] {
                list.push(slot, i64::from(slot) - 2);
            }
            assert_eq!(wakes.load(Ordering::Relaxed), batch);
            assert!(!list.is_empty());
            assert_eq!(taken(&list), [(3, 1), (0, -2), (2, 0)]);
            assert!(list.is_empty());
        }
    }

    #[test]
    fn no_completion_of_several_threads_is_lost_or_doubled() {
        const THREADS: u32 = 4;
        const ROUNDS: i64 = 5000;
        let list = CompletionList::new(THREADS as usize, Arc::new(|| ()));
        // The round that each slot is in: its thread adds the next one when the owner has taken the last one.
        let rounds: Vec<AtomicI64> = (0..THREADS).map(|_| AtomicI64::new(0)).collect();
        let deadline = Deadline::default();
        thread::scope(|scope| {
            for slot in 0..THREADS {
                let (list, round) = (&list, &rounds[slot as usize]);
                scope.spawn(move || {
                    for number in 0..ROUNDS {
                        while round.load(Ordering::Relaxed) != number {
                            deadline.check("the owner takes a completion");
                            thread::yield_now();
                        }
                        list.push(slot, number);
                    }
                });
            }
            let all = ROUNDS * i64::from(THREADS);
            let mut count = 0;
            while count < all {
                deadline.check("all completions");
                list.take(|slot, returned, _| {
                    let round = rounds[slot as usize].fetch_add(1, Ordering::Relaxed);
                    assert_eq!(round, returned, "slot {slot}");
                    count += 1;
                });
                thread::yield_now();
            }
        });
        assert!(list.is_empty());
    }
}
