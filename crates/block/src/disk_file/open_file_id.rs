//! Small numbers for open files, unique while the file is open, so that iothreads can index arrays by them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of an open file, unique until it is dropped. A new one is the smallest that is free.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpenFileId(u32);

/// Allocates the numbers: those that were freed, and the smallest that was never used.
struct IdAllocator {
    next: u32,
    free: BinaryHeap<Reverse<u32>>,
}

static ID_ALLOCATOR: Mutex<IdAllocator> = Mutex::new(IdAllocator {
    next: 0,
    free: BinaryHeap::new(),
});

fn lock_id_allocator() -> MutexGuard<'static, IdAllocator> {
    // Nothing that can panic runs under the lock.
    ID_ALLOCATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFileId {
    /// Takes the smallest free number. For the control plane: it takes a lock.
    pub fn allocate() -> Self {
        let mut ids = lock_id_allocator();
        if let Some(Reverse(number)) = ids.free.pop() {
            return OpenFileId(number);
        }
        let number = ids.next;
        ids.next += 1;
        OpenFileId(number)
    }

    /// The number.
    pub fn as_u32(&self) -> u32 {
        self.0
    }

    /// The number as an index into a table.
    pub fn as_index(&self) -> usize {
        // A u32 fits a usize here.
        self.0 as usize
    }
}

impl Drop for OpenFileId {
    fn drop(&mut self) {
        lock_id_allocator().free.push(Reverse(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_small_and_used_again() {
        let mut ids: Vec<_> = (0..100).map(|_| OpenFileId::allocate()).collect();
        let mut numbers: Vec<_> = ids.iter().map(OpenFileId::as_u32).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
        // Other tests open files meanwhile.
        for _ in 0..1000 {
            ids.pop();
            ids.push(OpenFileId::allocate());
        }
        assert!(ids.iter().all(|id| id.as_u32() < 1000));
    }
}
