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

/// What the program tells the thread.
pub(crate) enum Letter {
    Open {
        door: Endpoint,
        pretty: bool,
        clients: ClientCount,
    },
    Answer {
        client: u64,
        answer: Value,
    },
    Event {
        name: &'static str,
        event: Value,
    },
    /// New clients are left waiting, or are not any more; said when it is so.
    Hold {
        held: bool,
        done: SyncSender<()>,
    },
    Stop,
}

/// Reaches the server from any thread; also before there is one, when nobody listens.
#[derive(Clone)]
pub struct Handle(Arc<Mailbox>);

struct Mailbox {
    state: Mutex<Letters>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Letters {
    /// Somebody reads them.
    read: bool,
    letters: Vec<Letter>,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, Letters> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Of a server to be.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        Ok(Handle(Arc::new(Mailbox { state, wake })))
    }

    /// Tells all clients of an event.
    pub fn emit(&self, name: &'static str, data: Value) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A clock before 1970 is nobody's.
        let now = now.unwrap_or_default();
        let event = json!({
            "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
            "event": name,
            "data": data,
        });
        self.send(Letter::Event { name, event });
    }

    /// The answer to a client's request.
    pub(crate) fn answer(&self, client: u64, answer: Value) {
        self.send(Letter::Answer { client, answer });
    }

    /// Letters are read from now on.
    pub(crate) fn open(&self) {
        self.0.state().read = true;
    }

    /// They are not any more: nobody waits for what they ask.
    pub(crate) fn close(&self) {
        *self.0.state() = Letters::default();
    }

    /// Readable when there are letters.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.0.wake
    }

    pub(crate) fn send(&self, letter: Letter) {
        {
            let mut state = self.0.state();
            if !state.read {
                return;
            }
            state.letters.push(letter);
            if state.letters.len() > 1 {
                // Whoever put the first one there wakes the reader, who takes all.
                return;
            }
        }
        // Fails only when the counter is full, and somebody wakes up.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<Letter> {
        // Fails only when nobody has written.
        let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        mem::take(&mut self.0.state().letters)
    }
}
