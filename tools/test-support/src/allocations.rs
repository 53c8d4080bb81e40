//! Counts the allocations of each thread, for tests that assert none.
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;
//!
//! let before = test_support::allocations::of_this_thread();
//! drop(std::hint::black_box(Box::new(1)));
//! assert_eq!(test_support::allocations::of_this_thread(), before + 1);
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has allocated, or moved what it had, since it began. Stays 0 in a program
/// whose allocator is not [`Counting`]: a test had better see it count once.
#[must_use]
pub fn of_this_thread() -> u64 {
    ALLOCATIONS.get()
}

/// The system's allocator, with a count for each thread: the harness of a test has threads of its
/// own.
#[derive(Debug)]
pub struct Counting;

// SAFETY: everything is the system allocator's; the counter is a plain thread-local integer that
// needs no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
