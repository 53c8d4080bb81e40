//! A connection that is being made: where the queue that needs it waits, and its thread leaves it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Wake;
use super::connect::Connected;

#[derive(Default)]
struct State {
    connected: Option<Connected>,
    is_cancelled: bool,
}

/// A connection that is being made.
pub(super) struct Reconnection {
    state: Mutex<State>,
    cancelled: Condvar,
    is_ready: AtomicBool,
    wake: Wake,
}

impl Reconnection {
    /// One that is not there yet. `wake` is called when it is.
    pub fn new(wake: Wake) -> Arc<Self> {
        Arc::new(Reconnection {
            state: Mutex::default(),
            cancelled: Condvar::new(),
            is_ready: AtomicBool::new(false),
            wake,
        })
    }

    /// The new connection, once it is there. Takes no lock before.
    pub fn take_connected(&self) -> Option<Connected> {
        if !self.is_ready() {
            return None;
        }
        self.lock().connected.take()
    }

    /// Whether [`take_connected`](Self::take_connected) finds the connection.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Acquire)
    }

    /// Leaves a connection to the queue. Returns it if the queue has one, or has stopped waiting.
    pub fn offer(&self, connected: Connected) -> Option<Connected> {
        let mut state = self.lock();
        if state.is_cancelled || state.connected.is_some() {
            return Some(connected);
        }
        state.connected = Some(connected);
        self.is_ready.store(true, Ordering::Release);
        drop(state);
        (self.wake)();
        None
    }

    /// Ends the thread after its current attempt.
    pub fn cancel(&self) {
        let mut state = self.lock();
        state.is_cancelled = true;
        state.connected = None;
        self.cancelled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was cancelled before the pause has passed.
    pub fn is_cancelled_after(&self, pause: Duration) -> bool {
        let state = self.lock();
        let waited = self
            .cancelled
            .wait_timeout_while(state, pause, |state| !state.is_cancelled);
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .is_cancelled
    }
}
