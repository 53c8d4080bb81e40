//! Connects in the background: a thread for each queue that needs a connection, until one is there.

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
    wake: Wake,
}

impl Reconnection {
    /// Starts to connect, after a pause. `old` is the broken connection. Without one it is the first connection of a queue, for which one
    /// that no queue uses is as good.
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
            wake,
        });
        let (disk, of_thread) = (disk.clone(), reconnection.clone());
        launcher::spawn_thread("nbd connect", move || {
            match old {
                Some(old) => old.wait(),
                None => disk.offer_connection_after_ends(&of_thread),
            }
            of_thread.connect_until_cancelled(&disk, pause);
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

    fn connect_until_cancelled(&self, disk: &Disk, mut pause: Duration) {
        let mut last_error = String::new();
        while !self.is_cancelled_after(pause) {
            let connected = connect(disk.options(), Instant::now() + ATTEMPT_TIMEOUT)
                .and_then(|connected| disk.check_unchanged(&connected).map(|()| connected));
            match connected {
                Ok(connected) => return drop(self.offer(connected)),
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
