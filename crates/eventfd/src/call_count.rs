//! The protocol between threads that make guarded calls and a guard that sleeps while none does.
//!
//! A thread stores that it is in a call and then reads whether the guard sleeps; the guard stores that it sleeps and then reads
//! the counts. With a fence between the two at least one of them sees the other, so a call is never made while the guard
//! sleeps without having been woken.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Number of calls of a thread that have begun or ended; odd during a call.
pub struct CallCount(AtomicU64);

impl CallCount {
    pub fn new() -> Self {
        CallCount(AtomicU64::new(0))
    }

    /// The present count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts the end of a call. Only its own thread counts.
    #[inline]
    pub fn end_call(&self) {
        self.0.store(self.get() + 1, Ordering::Relaxed);
    }
}

/// Whether a thread with this count is in a call.
pub fn is_in_call(count: u64) -> bool {
    !count.is_multiple_of(2)
}

/// Whether the guard sleeps.
pub struct GuardSleep(AtomicBool);

impl GuardSleep {
    /// The guard is awake.
    pub fn new() -> Self {
        GuardSleep(AtomicBool::new(false))
    }

    /// Counts the beginning of a call of the current thread. True: the caller has to wake the guard.
    #[inline]
    #[must_use]
    pub fn begin_call(&self, calls: &CallCount) -> bool {
        calls.0.store(calls.get() + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }

    /// The guard begins to sleep. False: a call has begun since its last check, so it may not.
    #[must_use]
    pub fn try_begin_sleep(&self, has_begun_call: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let has_begun_call = has_begun_call();
        if has_begun_call {
            self.0.store(false, Ordering::Relaxed);
        }
        !has_begun_call
    }
}
