//! Flushes of other threads on the connection of a queue, where the server allows one connection.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::Errno;

/// A thread that waits for its flush.
type Caller = Sender<Result<(), Errno>>;

/// The result of a flush, once there is one.
pub(super) struct FlushResult(Receiver<Result<(), Errno>>);

impl FlushResult {
    /// Waits for it. `None`: the queue has ended before.
    pub fn wait(self, timeout: Duration) -> Option<io::Result<()>> {
        match self.0.recv_timeout(timeout) {
            Ok(result) => Some(result.map_err(io::Error::from)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => Some(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Flushes that the queue has not begun.
#[derive(Default)]
pub(super) struct FlushCalls {
    callers: Mutex<Vec<Caller>>,
    has_callers: AtomicBool,
}

impl FlushCalls {
    /// Has the queue flush when it is woken.
    pub fn call(&self) -> FlushResult {
        let (caller, result) = channel();
        let mut callers = self.lock();
        callers.push(caller);
        // While the list is locked: the queue may take the caller right behind, and the flag would stay.
        self.has_callers.store(true, Ordering::Release);
        drop(callers);
        FlushResult(result)
    }

    /// Whether a flush is to be begun.
    pub fn is_requested(&self) -> bool {
        self.has_callers.load(Ordering::Acquire)
    }

    /// Takes all callers.
    pub fn take(&self) -> Vec<Caller> {
        let mut callers = self.lock();
        self.has_callers.store(false, Ordering::Release);
        std::mem::take(&mut *callers)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Caller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
