//! Queue of messages to the monitors' thread: responses, events and new monitors, from any thread of the program.

use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};

use crate::client_count::ClientCount;
use crate::endpoint::Endpoint;
use crate::state_events::StateKey;

/// A message to the monitors' thread.
pub(crate) enum MessageToServer {
    /// Opens a monitor.
    Open {
        endpoint: Endpoint,
        pretty: bool,
        clients: ClientCount,
    },
    /// The response to a request of a client.
    Response { client: u64, response: Value },
    /// An event for all clients.
    Event {
        name: &'static str,
        event: Value,
        limit: EventLimit,
    },
    /// Pauses or resumes the acceptance of clients; `done` is notified once that has been applied.
    SetAcceptingPaused { paused: bool, done: SyncSender<()> },
    /// Ends the thread.
    Stop,
}

/// How the number of events is limited.
pub(crate) enum EventLimit {
    /// Not at all: the program causes them.
    None,
    /// As one of this state, see [`ServerHandle::emit_state`].
    State(StateKey),
    /// Not at all, and what is held back of all states of this owner is sent before it.
    EndOfStates(String),
}

/// Sends messages to the server from any thread. Without a running server they are dropped.
#[derive(Clone)]
pub struct ServerHandle(Arc<MessageQueue>);

/// Messages that wait for the server.
struct MessageQueue {
    state: Mutex<MessageQueueState>,
    /// Readable while there are messages.
    wake_fd: OwnedFd,
}

/// What the lock of a queue protects.
#[derive(Default)]
struct MessageQueueState {
    /// The server runs and takes messages; otherwise they are dropped.
    is_server_running: bool,
    messages: Vec<MessageToServer>,
}

impl MessageQueue {
    /// Locks the state.
    fn lock_state(&self) -> MutexGuard<'_, MessageQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerHandle {
    /// A handle of a server that is not started yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        Ok(ServerHandle(Arc::new(MessageQueue { state, wake_fd })))
    }

    /// Sends an event to all clients. For one that a guest, a front-end or a network client can cause at will, use
    /// [`emit_state`](Self::emit_state).
    pub fn emit(&self, name: &'static str, data: Value) {
        self.emit_limited(name, data, EventLimit::None);
    }

    /// Sends an event that tells the present value of a state. All events of one state share a limit. If there are many, a few are sent
    /// at once and then one per second: the latest, those between are dropped.
    pub fn emit_state(&self, state: StateKey, name: &'static str, data: Value) {
        self.emit_limited(name, data, EventLimit::State(state));
    }

    /// Sends an event that ends all states of `owner`: the latest event of each comes before it.
    pub fn emit_end_of_states(&self, owner: String, name: &'static str, data: Value) {
        self.emit_limited(name, data, EventLimit::EndOfStates(owner));
    }

    /// Sends an event with the present time to all clients.
    fn emit_limited(&self, name: &'static str, data: Value, limit: EventLimit) {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // Fails only with a clock before 1970.
        let since_1970 = since_1970.unwrap_or_default();
        let event = json!({
            "timestamp": {"seconds": since_1970.as_secs(), "microseconds": since_1970.subsec_micros()},
            "event": name,
            "data": data,
        });
        self.send(MessageToServer::Event { name, event, limit });
    }

    /// Sends the response to a client's request.
    pub(crate) fn respond(&self, client: u64, response: Value) {
        self.send(MessageToServer::Response { client, response });
    }

    /// Records that the server has started: messages are queued from now on.
    pub(crate) fn mark_server_started(&self) {
        self.0.lock_state().is_server_running = true;
    }

    /// Records that the server has ended, which calls this itself: queued messages and all later ones are dropped. Senders
    /// that wait for a message to be applied are released.
    pub(crate) fn mark_server_ended_and_drop_messages(&self) {
        *self.0.lock_state() = MessageQueueState::default();
    }

    /// The descriptor that is readable while there are messages.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.0.wake_fd
    }

    /// Sends a message, and wakes the server unless an earlier message has done so.
    pub(crate) fn send(&self, message: MessageToServer) {
        {
            let mut state = self.0.lock_state();
            if !state.is_server_running {
                return;
            }
            state.messages.push(message);
            if state.messages.len() > 1 {
                // The sender of the first message wakes the server, which takes all.
                return;
            }
        }
        // Fails only when the counter is full, and then the server is woken already.
        let _ = rustix::io::write(&self.0.wake_fd, &1u64.to_ne_bytes());
    }

    /// Takes all messages.
    pub(crate) fn take_messages_and_clear_wake(&self) -> Vec<MessageToServer> {
        // Fails only when the counter is zero.
        let _ = rustix::io::read(&self.0.wake_fd, &mut [0; 8]);
        mem::take(&mut self.0.lock_state().messages)
    }
}
