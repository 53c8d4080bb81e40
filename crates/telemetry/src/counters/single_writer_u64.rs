//! A counter with one writer: one thread changes it without a locked instruction, and any thread reads it.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread changes, and any thread reads at any time.
///
/// Since there is one writer, a change is a plain addition in memory. Two counters that are read one after the other may be of
/// two moments. All-zero bytes are zero.
///
/// If two threads wrote at the same time, one of the changes would be lost, and nothing worse would happen. To change the
/// writer, the threads have to synchronize.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SingleWriterU64(AtomicU64);

impl SingleWriterU64 {
    /// Adds to it.
    #[inline(always)]
    pub fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    /// Subtracts from it, down to 0.
    #[inline]
    pub fn subtract(&self, count: u64) {
        self.set(self.get().saturating_sub(count));
    }

    /// Raises it to `value` if it is smaller.
    #[inline(always)]
    pub fn raise_to(&self, value: u64) {
        if self.get() < value {
            self.set(value);
        }
    }

    /// Replaces it.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_a_counter_grow() {
        let counter = SingleWriterU64::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|_| counter.add(3)));
            let mut seen = 0;
            while seen < 300_000 {
                let now = counter.get();
                assert!(now >= seen && now.is_multiple_of(3));
                seen = now;
            }
        });
        counter.raise_to(5);
        assert_eq!(counter.get(), 300_000);
        counter.raise_to(300_001);
        assert_eq!(counter.get(), 300_001);
    }
}
