//! Connects again in the background: a thread for each broken connection, until a new one is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connect::{ATTEMPT_TIMEOUT, Connected, connect};
use super::disk::Disk;
use super::ending::EndingConnection;
use super::launcher;

/// The wait between two attempts, at first; it is doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest wait between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Wakes the thread of a queue.
pub(super) type Wake = Arc<dyn Fn() + Send + Sync>;

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
}

impl Reconnection {
    /// Starts to connect again, after a pause. `old` is the broken connection.
    pub fn start(
        disk: &Arc<Disk>,
        old: Option<EndingConnection>,
        pause: Duration,
        wake: Wake,
    ) -> Arc<Self> {
        let reconnection = Arc::new(Reconnection {
            state: Mutex::default(),
            cancelled: Condvar::new(),
            is_ready: AtomicBool::new(false),
        });
        let (disk, of_thread) = (disk.clone(), reconnection.clone());
        launcher::spawn_thread("nbd connect", move || {
            if let Some(old) = old {
                old.wait();
            }
            of_thread.connect_until_cancelled(&disk, pause, &wake);
        });
        reconnection
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
    fn is_cancelled_after(&self, pause: Duration) -> bool {
        let state = self.lock();
        let waited = self
            .cancelled
            .wait_timeout_while(state, pause, |state| !state.is_cancelled);
        waited
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .is_cancelled
    }

    fn connect_until_cancelled(&self, disk: &Disk, mut pause: Duration, wake: &Wake) {
        let mut last_error = String::new();
        while !self.is_cancelled_after(pause) {
            let connected = connect(disk.options(), Instant::now() + ATTEMPT_TIMEOUT)
                .and_then(|connected| disk.check_unchanged(&connected).map(|()| connected));
            match connected {
                Ok(connected) => {
                    let mut state = self.lock();
                    if !state.is_cancelled {
                        state.connected = Some(connected);
                        self.is_ready.store(true, Ordering::Release);
                        drop(state);
                        wake();
                    }
                    return;
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        tracing::warn!(%error, "no new connection to {} yet", disk.options());
                        last_error = error;
                    }
                }
            }
            pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
    }
}
