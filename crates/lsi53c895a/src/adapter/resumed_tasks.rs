//! Tasks that were told to go on.
//!
//! Their units are this adapter's alone, so it is told on its own thread. Nearly always there are none: to see that takes no lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use scsi::Resume;

#[derive(Default)]
pub struct ResumedTasks {
    tokens: Mutex<Vec<u64>>,
    /// There may be some.
    any: AtomicBool,
}

impl ResumedTasks {
    /// One of them.
    pub fn next(&self) -> Option<u64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let token = tokens.pop();
        self.any.store(!tokens.is_empty(), Ordering::Release);
        token
    }
}

impl Resume for ResumedTasks {
    fn resume(&self, token: u64) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.push(token);
        self.any.store(true, Ordering::Release);
    }
}
