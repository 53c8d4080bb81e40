//! Queue of resumed SCSI tasks: they waited for a mutex of their unit that another task held (COMPARE AND WRITE,
//! reservations), have it now, and wait until the adapter continues them.
//!
//! Nearly always it is empty, which is checked without a lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use scsi::Resume;

/// The tokens of resumed tasks; the wakers of all tasks push to it.
#[derive(Default)]
pub struct ResumedTasks {
    tokens: Mutex<Vec<u64>>,
    /// The queue may have tasks.
    may_have_tasks: AtomicBool,
}

impl ResumedTasks {
    /// Removes the token of a task, which is the index of its slot.
    pub fn pop(&self) -> Option<u64> {
        if !self.may_have_tasks.load(Ordering::Acquire) {
            return None;
        }
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let token = tokens.pop();
        self.may_have_tasks
            .store(!tokens.is_empty(), Ordering::Release);
        token
    }
}

impl Resume for ResumedTasks {
    fn schedule_resume(&self, token: u64) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.push(token);
        self.may_have_tasks.store(true, Ordering::Release);
    }
}
