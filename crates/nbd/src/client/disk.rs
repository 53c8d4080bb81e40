//! `Disk`: an opened export, which the queues of several threads share.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Wake;
use super::connect::{ConnectError, Connected, connect};
use super::ending::{ENDING_WAIT, time_until_ended, wait_for_ending};
use super::features::Features;
use super::flush_calls::{FlushCalls, FlushResult};
use super::handshake::Negotiated;
use super::idle_connection::IdleConnection;
use super::launcher::Launcher;
use super::lost::Lost;
use super::options::ClientOptions;
use super::reconnection::Reconnection;
use super::socket::Socket;

/// The pause between two attempts to open.
const OPEN_PAUSE: Duration = Duration::from_millis(200);

/// Why an export cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {options}: {error}{hint}")]
pub struct OpenError {
    options: String,
    error: ConnectError,
    hint: &'static str,
}

struct State {
    idle: IdleConnection,
    /// Of each queue that exists, what wakes its thread.
    queues: Vec<Wake>,
}

/// An opened export.
pub struct Disk {
    options: ClientOptions,
    /// As it was when the disk was opened.
    negotiated: Negotiated,
    features: Features,
    launcher: Launcher,
    state: Mutex<State>,
    pub(super) flush_calls: FlushCalls,
    /// Writes were answered since the last flush outside of a queue.
    pub(super) has_unflushed: AtomicBool,
    /// Locked while one caller flushes.
    pub(super) flushing: Mutex<()>,
    pub(super) connected_queues: AtomicU64,
    pub(super) reconnections: AtomicU64,
    /// How many connections have broken.
    losses: AtomicU64,
    /// Cancellations that exist.
    cancellations: AtomicUsize,
}

impl Disk {
    /// Opens an export: connects to its server, again and again until `open_timeout` if the server cannot be reached. Connections to the
    /// export that are ending are waited for before.
    ///
    /// # Errors
    /// [`OpenError`], whose text names cause and remedy.
    pub fn open(options: &ClientOptions) -> Result<Arc<Self>, OpenError> {
        let launcher = start_launcher(options)?;
        let deadline = Instant::now() + options.open_timeout;
        loop {
            let attempt_deadline =
                Instant::now() + time_until_ended(options) + options.attempt_timeout;
            match connect_by_launcher(&launcher, options, attempt_deadline) {
                Ok(connected) => {
                    return Ok(Self::of_connection(options.clone(), launcher, connected));
                }
                Err(error) if error.is_temporary() && Instant::now() + OPEN_PAUSE < deadline => {
                    thread::sleep(OPEN_PAUSE);
                }
                Err(error) => {
                    let is_unanswered = error.is_temporary()
                        && !matches!(
                            error,
                            ConnectError::Resolve { .. } | ConnectError::PreviousNotEnded
                        );
                    let hint = match is_unanswered {
                        true => {
                            " (does the server run, and is another client connected to one that serves only one?)"
                        }
                        false => "",
                    };
                    return Err(OpenError {
                        options: options.to_string(),
                        error,
                        hint,
                    });
                }
            }
        }
    }

    /// A disk as another process has opened it. The first queue connects, in the background.
    ///
    /// # Errors
    /// The thread that starts others to connect could not be started.
    pub fn restore(options: ClientOptions, negotiated: Negotiated) -> Result<Arc<Self>, OpenError> {
        let launcher = start_launcher(&options)?;
        let disk = Self::with_idle(options, launcher, negotiated, None);
        disk.has_unflushed.store(true, Ordering::Relaxed);
        Ok(disk)
    }

    /// A disk with a connection that has entered transmission, for fuzzing. The socket does not block.
    ///
    /// # Errors
    /// That of [`restore`](Self::restore).
    #[doc(hidden)]
    pub fn of_socket(
        options: ClientOptions,
        socket: OwnedFd,
        negotiated: Negotiated,
    ) -> Result<Arc<Self>, OpenError> {
        let launcher = start_launcher(&options)?;
        let socket = Socket::plain(socket);
        let connected = Connected { socket, negotiated };
        Ok(Self::of_connection(options, launcher, connected))
    }

    fn of_connection(
        options: ClientOptions,
        launcher: Launcher,
        connected: Connected,
    ) -> Arc<Self> {
        Self::with_idle(options, launcher, connected.negotiated, Some(connected))
    }

    fn with_idle(
        options: ClientOptions,
        launcher: Launcher,
        negotiated: Negotiated,
        idle: Option<Connected>,
    ) -> Arc<Self> {
        Arc::new(Disk {
            options,
            negotiated,
            features: Features::of(&negotiated),
            launcher,
            state: Mutex::new(State {
                idle: IdleConnection::new(idle),
                queues: Vec::new(),
            }),
            flush_calls: FlushCalls::default(),
            has_unflushed: AtomicBool::new(false),
            flushing: Mutex::default(),
            connected_queues: AtomicU64::new(0),
            reconnections: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            cancellations: AtomicUsize::new(0),
        })
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The result of the handshake when it was opened.
    #[must_use]
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// What the export can do.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Starts the threads that connect for it.
    pub(super) fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// How many queues have a connection now.
    #[must_use]
    pub fn connected_queues(&self) -> u64 {
        self.connected_queues.load(Ordering::Relaxed)
    }

    /// How many times a queue has connected again after its connection broke.
    #[must_use]
    pub fn reconnections(&self) -> u64 {
        self.reconnections.load(Ordering::Relaxed)
    }

    /// Counts one more queue, which gets the connection that no queue uses, if there is one, and none to the export is ending. `None`: the
    /// server allows one connection, which another queue has.
    pub(super) fn add_queue(&self, wake: &Wake) -> Option<Option<Connected>> {
        let mut state = self.lock();
        if !state.queues.is_empty() && !self.features.multi_conn {
            return None;
        }
        state.queues.push(wake.clone());
        self.drop_idle_if_broken(&mut state);
        Some(match time_until_ended(&self.options) {
            Duration::ZERO => state.idle.take(),
            _ => None,
        })
    }

    /// Counts one queue less, whose connection is kept, since some servers end with their last client.
    pub(super) fn remove_queue(&self, wake: &Wake, connection: Option<Connected>) {
        let mut state = self.lock();
        let mut queues = state.queues.iter();
        if let Some(index) = queues.position(|other| Arc::ptr_eq(other, wake)) {
            state.queues.swap_remove(index);
        }
        if state.queues.is_empty() {
            // Callers flush on the connection themselves.
            drop(self.flush_calls.take());
        }
        if let Some(connected) = connection {
            state.idle.offer_or_keep(connected);
        }
    }

    /// How many connections have broken, perhaps because the server crashed.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    pub(super) fn count_loss(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn count_loss_if_crash(&self, reason: Lost) {
        if reason.may_be_a_crash() {
            self.count_loss();
        }
    }

    /// Drops the connection that no queue uses if the server has ended it, and counts that as a loss now rather than when a queue uses it:
    /// the server may have crashed.
    pub(super) fn drop_broken_idle_connection(&self) {
        self.drop_idle_if_broken(&mut self.lock());
    }

    fn drop_idle_if_broken(&self, state: &mut State) {
        if state.idle.take_if_broken().is_some() {
            self.count_loss();
        }
    }

    /// Has the queues look for cancelled requests.
    pub(super) fn begin_cancellation(&self) {
        self.cancellations.fetch_add(1, Ordering::AcqRel);
        for wake in &self.lock().queues {
            wake();
        }
    }

    pub(super) fn end_cancellation(&self) {
        self.cancellations.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether some requests may be cancelled.
    pub(super) fn has_cancellations(&self) -> bool {
        self.cancellations.load(Ordering::Acquire) > 0
    }

    /// Has the queue flush that has the connection, at a server that allows one. `None`: there is no such queue.
    pub(super) fn begin_flush_of_only_queue(&self) -> Option<FlushResult> {
        if self.features.multi_conn {
            return None;
        }
        let state = self.lock();
        let wake = state.queues.first()?;
        // The queue has not been removed, which ends the calls.
        let result = self.flush_calls.call();
        wake();
        Some(result)
    }

    pub(super) fn take_idle_connection(&self) -> Option<Connected> {
        self.lock().idle.take()
    }

    /// Returns a connection that was [taken](Self::take_idle_connection), or one more.
    pub(super) fn return_connection(&self, connected: Connected) {
        self.lock().idle.offer_or_keep(connected);
    }

    /// Has a queue get the next connection that no queue uses, if it has none by then; but waits until connections to the export that
    /// are ending have ended.
    pub(super) fn offer_connection_after_ends(&self, awaited: &Arc<Reconnection>) {
        let left = time_until_ended(&self.options);
        if left > ENDING_WAIT {
            tracing::warn!(
                seconds = left.as_secs(),
                "requests to {} wait until its server has ended a connection on which it did not answer",
                self.options
            );
        }
        let _ = wait_for_ending(&[&self.options], Instant::now() + left);
        let mut state = self.lock();
        self.drop_idle_if_broken(&mut state);
        state.idle.add_awaited(awaited);
    }

    /// Checks that an export is as it was when the disk was opened, as far as requests depend on it.
    pub(super) fn check_unchanged(&self, connected: &Connected) -> Result<(), ConnectError> {
        let (new, old) = (&connected.negotiated, &self.negotiated);
        let (now, then) = (Features::of(new), self.features);
        let problem = if new.size != old.size {
            format!("it has {} bytes instead of {}", new.size, old.size)
        } else if now.read_only && !then.read_only {
            "it is read-only now".to_owned()
        } else if new.blocks.minimum > old.blocks.minimum {
            format!(
                "its smallest block has {} bytes now instead of {}",
                new.blocks.minimum, old.blocks.minimum
            )
        } else if new.blocks.maximum < old.blocks.maximum {
            format!(
                "a request may have {} bytes now instead of {}",
                new.blocks.maximum, old.blocks.maximum
            )
        } else if let Some(lost) = then.lost_in(now) {
            format!("it offers {lost} no more")
        } else {
            return Ok(());
        };
        let text = format!("the export has changed since it was opened: {problem}");
        Err(ConnectError::Changed(text))
    }

    /// Ends the connections of all these disks, none of which a queue uses, so that another process can connect. Waits for their ends
    /// for a few seconds at most; false if a server has not ended one by then. The next queue connects again.
    #[must_use]
    pub fn close_connections(disks: &[&Arc<Self>]) -> bool {
        for disk in disks {
            disk.close_idle_connection();
        }
        let exports: Vec<&ClientOptions> = disks.iter().map(|disk| disk.options()).collect();
        wait_for_ending(&exports, Instant::now() + ENDING_WAIT)
    }

    /// Ends the connection that no queue uses, as the protocol has it.
    fn close_idle_connection(&self) {
        let idle = self.lock().idle.take();
        if let Some(idle) = idle {
            idle.disconnect();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start_launcher(options: &ClientOptions) -> Result<Launcher, OpenError> {
    Launcher::get_or_start().map_err(|error| OpenError {
        options: options.to_string(),
        error: ConnectError::NoLauncher(error),
        hint: "",
    })
}

/// Connects on a thread that has the privileges for it.
pub(super) fn connect_by_launcher(
    launcher: &Launcher,
    options: &ClientOptions,
    deadline: Instant,
) -> Result<Connected, ConnectError> {
    let options = options.clone();
    let connected = launcher.run(move || connect(&options, deadline));
    connected.map_err(ConnectError::Connect)?
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close_idle_connection();
    }
}
