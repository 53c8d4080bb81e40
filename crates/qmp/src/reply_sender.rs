//! Handle to answer a QMP request: sends the result or error of its command, now or later, from any thread.

use serde_json::Value;

use crate::{Error, ServerHandle, response};

/// Sends the response to a request, from any thread. If it is dropped, the client gets the error that the daemon is about to
/// end, since requests are abandoned for no other reason.
pub struct ReplySender {
    handle: ServerHandle,
    client: u64,
    id: Option<Value>,
    is_sent: bool,
}

impl ReplySender {
    /// For the request of this id.
    pub(crate) fn new(handle: ServerHandle, client: u64, id: Option<Value>) -> Self {
        ReplySender {
            handle,
            client,
            id,
            is_sent: false,
        }
    }

    /// Sends the outcome of the command to the client.
    pub fn send(mut self, outcome: Result<Value, Error>) {
        self.send_and_mark_sent(outcome);
    }

    /// Sends the response, and remembers that it is sent.
    fn send_and_mark_sent(&mut self, outcome: Result<Value, Error>) {
        self.is_sent = true;
        self.handle
            .respond(self.client, response::to_json(outcome, self.id.take()));
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        if !self.is_sent {
            self.send_and_mark_sent(Err(Error::generic("the daemon is about to end")));
        }
    }
}
