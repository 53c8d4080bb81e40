//! Ranges that are being rewritten.
//!
//! A write smaller than the disk's block is done by reading the block, changing it and writing it
//! back. Two of them in one block, or one beside a plain write, would undo each other, so on disks
//! where that can happen every write holds its range, rounded to blocks. Only worker threads wait
//! here.

use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
pub(crate) struct RangeLock {
    held: Mutex<Vec<Range<u64>>>,
    released: Condvar,
}

/// Holds its range until dropped.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
}

impl RangeLock {
    /// Waits until nobody holds a byte of the range.
    pub fn lock(&self, range: Range<u64>) -> RangeGuard<'_> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |held: &mut Vec<Range<u64>>| {
            held.iter()
                .any(|other| other.start < range.end && range.start < other.end)
        };
        let mut held = self
            .released
            .wait_while(held, overlaps)
            .unwrap_or_else(PoisonError::into_inner);
        held.push(range.clone());
        RangeGuard { lock: self, range }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self
            .lock
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = held.iter().position(|other| *other == self.range) {
            held.swap_remove(index);
        }
        drop(held);
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let lock = RangeLock::default();
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    for round in 0..500u64 {
                        // All of them contain byte 100.
                        let _guard = lock.lock(90 + thread..101 + round % 7);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(lock.held.lock().unwrap().is_empty());
    }

    #[test]
    fn neighbours_do_not_wait() {
        let lock = RangeLock::default();
        let _first = lock.lock(0..10);
        let _second = lock.lock(10..20);
    }
}
