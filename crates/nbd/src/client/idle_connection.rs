//! The connection of a disk that no queue uses: it is kept, since some servers end with their last client, and a later queue or flush
//! uses it. A queue that waits for its first connection gets it: a server that allows one connection would not accept another.

use std::sync::{Arc, Weak};

use super::connect::Connected;
use super::reconnection::Reconnection;

/// The place of the connection that no queue uses.
pub(super) struct IdleConnection {
    idle: Option<Connected>,
    /// The first connections of queues, as long as these wait for them.
    awaited: Vec<Weak<Reconnection>>,
}

impl IdleConnection {
    pub fn new(idle: Option<Connected>) -> Self {
        IdleConnection {
            idle,
            awaited: Vec::new(),
        }
    }

    /// Takes the connection, if there is one.
    pub fn take(&mut self) -> Option<Connected> {
        self.idle.take()
    }

    /// Takes the connection if the server has ended it.
    pub fn take_if_broken(&mut self) -> Option<Connected> {
        self.idle.take_if(|idle| idle.socket.has_ended())
    }

    /// Leaves a connection to a queue that waits for one. Without such a queue it is kept, unless there is one.
    pub fn offer_or_keep(&mut self, mut connected: Connected) {
        while let Some(awaited) = self.awaited.pop() {
            if let Some(awaited) = awaited.upgrade() {
                match awaited.offer(connected) {
                    None => return,
                    Some(refused) => connected = refused,
                }
            }
        }
        self.idle.get_or_insert(connected);
    }

    /// Has a queue get the next connection that is left, unless its own is there before.
    pub fn add_awaited(&mut self, awaited: &Arc<Reconnection>) {
        self.awaited.retain(|other| other.strong_count() > 0);
        self.awaited.push(Arc::downgrade(awaited));
        if let Some(idle) = self.take() {
            self.offer_or_keep(idle);
        }
    }
}
