//! State of a server that its threads share, and how they wait for each other.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use unix_socket::listener::Listener;
use vhost::vhost_user::BackendReqHandler;

use super::control_threads::{ControlThreads, Registration};
use crate::connection::Connection;
use crate::device::VirtioDevice;

/// The wire library's reader of a connection's messages, which calls the [`Connection`].
pub(super) type MessageReader = BackendReqHandler<Mutex<Connection>>;

/// How long a stopping server waits for the message that it handles. Replies are so short that only a
/// front-end that never reads makes a write wait; it loses its connection then.
const LAST_MESSAGE_TIME: Duration = Duration::from_secs(5);

/// The state, and how to wait for its changes.
pub(super) struct ServerShared {
    state: Mutex<ServerState>,
    /// No more messages are read, or no thread serves front-ends.
    changed: Condvar,
    registration: Registration,
}

#[derive(Default)]
pub(super) struct ServerState {
    /// When it was stopped; it accepts no more front-ends.
    pub stopped_at: Option<Instant>,
    /// No further message is to be handled.
    pub pause_requested: bool,
    pub socket: Option<Arc<UnixStream>>,
    pub connection: Option<Arc<Mutex<Connection>>>,
    /// Messages of the connection are being read or waited for; otherwise its queues drain.
    pub reading_messages: bool,
    /// What serves front-ends, while no thread does: it waits for its socket to be readable, or is paused.
    pub idle: Option<FrontEndServer>,
}

/// What serves the front-ends of a socket.
pub(super) struct FrontEndServer {
    pub listener: Listener,
    pub device: Arc<dyn VirtioDevice>,
    /// Reads the messages of the present front-end, if there is one.
    pub reader: Option<MessageReader>,
}

impl FrontEndServer {
    /// Whether a front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.reader.is_some()
    }
}

impl ServerState {
    /// Whether the server accepts no more front-ends.
    pub fn is_stopping(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Whether messages and front-ends have to wait.
    pub fn is_paused(&self) -> bool {
        self.pause_requested && !self.is_stopping()
    }
}

impl ServerShared {
    /// The state of a paused server without a front-end, which these threads serve.
    pub fn new_paused(threads: &ControlThreads) -> Arc<Self> {
        Arc::new_cyclic(|server: &Weak<ServerShared>| ServerShared {
            state: Mutex::new(ServerState {
                pause_requested: true,
                ..ServerState::default()
            }),
            changed: Condvar::new(),
            registration: threads.register(server.clone()),
        })
    }

    /// Locks the state, also after a panic.
    pub fn lock_state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket of the server, for [`ServerShared::watch_socket_unless_paused`].
    ///
    /// # Errors
    /// When memory, or what a user may watch, has run out.
    pub fn add_socket(&self, socket: impl AsFd) -> io::Result<()> {
        self.registration.add_socket(socket)
    }

    /// Has a thread serve the front-end when it sends something, or one that connects; also if it has done so already.
    pub fn watch_socket_unless_paused(&self, state: &ServerState) {
        if let Some(server) = state.idle.as_ref().filter(|_| !state.is_paused()) {
            match &state.socket {
                Some(socket) => self.registration.watch_once(socket),
                None if state.is_stopping() => {}
                None => self.registration.watch_once(server.listener.socket()),
            }
        }
    }

    /// Takes what serves front-ends, unless a thread does so already, or the server is paused.
    pub fn take_idle_unless_paused(&self) -> Option<FrontEndServer> {
        let mut state = self.lock_state();
        match state.is_paused() {
            true => None,
            false => state.idle.take(),
        }
    }

    /// Puts what serves front-ends back until there is something to do.
    pub fn put_idle(&self, server: FrontEndServer) {
        let mut state = self.lock_state();
        state.idle = Some(server);
        self.watch_socket_unless_paused(&state);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until no thread serves front-ends, and takes what does so.
    pub fn wait_until_idle_and_take(&self) -> Option<FrontEndServer> {
        let waited = self
            .changed
            .wait_while(self.lock_state(), |state| state.idle.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).idle.take()
    }

    /// Lets no further message be handled, and waits up to `timeout` for the present one. False, and no change, if it takes longer or
    /// the server is stopping.
    pub fn pause_within(&self, timeout: Duration) -> bool {
        let mut state = self.lock_state();
        if state.is_stopping() {
            return false;
        }
        state.pause_requested = true;
        let waited = self
            .changed
            .wait_timeout_while(state, timeout, |state| state.idle.is_none());
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.pause_requested = state.idle.is_some();
        state.pause_requested
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        let mut state = self.lock_state();
        state.pause_requested = false;
        self.watch_socket_unless_paused(&state);
    }

    /// Accepts no more front-ends, and reads no more of the present one than it has sent already.
    pub fn begin_stop(&self) {
        let mut state = self.lock_state();
        state.stopped_at.get_or_insert_with(Instant::now);
        if let Some(socket) = &state.socket {
            // Only the reading side is shut down: its thread sees the end, but the front-end must not see the end of the
            // connection before its queues have drained. It takes the used index that it finds then for the requests that
            // are done, and resubmits the others to the next server. (An error means that the connection is closed already.)
            let _ = socket.shutdown(Shutdown::Read);
        }
        // A paused server was not watched.
        self.watch_socket_unless_paused(&state);
    }

    /// Records that no more messages of the connection are read.
    pub fn mark_reading_ended(&self) {
        self.lock_state().reading_messages = false;
        self.changed.notify_all();
    }

    /// Waits until the message that is being handled has been answered. Disconnects a front-end that does not take its reply within
    /// [`LAST_MESSAGE_TIME`] of [`ServerShared::begin_stop`].
    pub fn wait_for_last_message_or_disconnect(&self) {
        let state = self.lock_state();
        let elapsed = state.stopped_at.map_or(Duration::ZERO, |at| at.elapsed());
        let left = LAST_MESSAGE_TIME.saturating_sub(elapsed);
        let waited = self
            .changed
            .wait_timeout_while(state, left, |state| state.reading_messages);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.reading_messages
            && let Some(socket) = &state.socket
        {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Locks a connection, also after a panic.
pub(super) fn lock_connection(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}
