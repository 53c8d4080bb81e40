//! loom's mutexes and atomics, which the product's files use here instead of those of `std`.

pub use loom::sync::{Condvar, Mutex, MutexGuard};

pub mod atomic {
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// loom takes sequentially consistent accesses for acquire and release, and knows only fences that are more. So there
    /// is one behind each such store, before any load that follows, as compilers for x86 have it.
    pub struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        pub fn new(value: bool) -> Self {
            AtomicBool(loom::sync::atomic::AtomicBool::new(value))
        }

        pub fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }

        pub fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, order);
            fence_behind(order);
        }

        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            let before = self.0.swap(value, order);
            fence_behind(order);
            before
        }
    }

    fn fence_behind(order: Ordering) {
        if order == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
    }
}
