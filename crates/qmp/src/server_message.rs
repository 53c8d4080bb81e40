//! Messages to the monitors' thread, from any thread of the program.

use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use std::{io, mem};

use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Value, json};

use crate::client_count::ClientCount;
use crate::endpoint::Endpoint;

/// A message to the monitors' thread.
pub(crate) enum ServerMessage {
    /// Opens a monitor.
    Open {
        endpoint: Endpoint,
        pretty: bool,
        clients: ClientCount,
    },
    /// The response to a request of a client.
    Response { client: u64, response: Value },
    /// An event for all clients.
    Event { name: &'static str, event: Value },
    /// Pauses or resumes the acceptance of clients; `done` is notified once that has been applied.
    PauseAccepting { paused: bool, done: SyncSender<()> },
    /// Ends the thread.
    Stop,
}

/// Sends messages to the server from any thread. Without a running server they are dropped.
#[derive(Clone)]
pub struct Handle(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    /// Readable while there are messages.
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    /// The server runs and takes messages.
    open: bool,
    messages: Vec<ServerMessage>,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// A handle of a server that is not started yet.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        Ok(Handle(Arc::new(Queue { state, wake })))
    }

    /// Sends an event to all clients.
    pub fn emit(&self, name: &'static str, data: Value) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // Fails only with a clock before 1970.
        let now = now.unwrap_or_default();
        let event = json!({
            "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
            "event": name,
            "data": data,
        });
        self.send(ServerMessage::Event { name, event });
    }

    /// Sends the response to a client's request.
    pub(crate) fn respond(&self, client: u64, response: Value) {
        self.send(ServerMessage::Response { client, response });
    }

    /// Accepts messages from now on: the server runs.
    pub(crate) fn open(&self) {
        self.0.state().open = true;
    }

    /// Drops all messages from now on: the server has ended. Senders that wait for a message to be applied are released.
    pub(crate) fn close(&self) {
        *self.0.state() = State::default();
    }

    /// The descriptor that is readable while there are messages.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.0.wake
    }

    pub(crate) fn send(&self, message: ServerMessage) {
        {
            let mut state = self.0.state();
            if !state.open {
                return;
            }
            state.messages.push(message);
            if state.messages.len() > 1 {
                // The sender of the first message wakes the server, which takes all.
                return;
            }
        }
        // Fails only when the counter is full, and then the server is woken already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<ServerMessage> {
        // Fails only when the counter is zero.
        let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        mem::take(&mut self.0.state().messages)
    }
}
