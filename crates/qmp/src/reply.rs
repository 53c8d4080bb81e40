//! The answer that a request still waits for.

use serde_json::Value;

use crate::{Error, Handle, response};

/// Answers a request, from any thread. One that is dropped says that the daemon is about to end: nothing else
/// leaves a request behind.
pub struct Reply {
    handle: Handle,
    client: u64,
    id: Option<Value>,
    sent: bool,
}

impl Reply {
    pub(crate) fn new(handle: Handle, client: u64, id: Option<Value>) -> Self {
        Reply {
            handle,
            client,
            id,
            sent: false,
        }
    }

    /// The client gets this.
    pub fn send(mut self, outcome: Result<Value, Error>) {
        self.say(outcome);
    }

    fn say(&mut self, outcome: Result<Value, Error>) {
        self.sent = true;
        self.handle
            .answer(self.client, response::to_json(outcome, self.id.take()));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.say(Err(Error::generic("the daemon is about to end")));
        }
    }
}
