//! Reply to a request whose command is not done yet.

use serde_json::Value;

use crate::{Error, Handle, response};

/// Sends the response to a request, from any thread. If it is dropped, the client gets the error that the daemon is about to
/// end, since requests are abandoned for no other reason.
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

    /// Sends the outcome of the command to the client.
    pub fn send(mut self, outcome: Result<Value, Error>) {
        self.respond(outcome);
    }

    fn respond(&mut self, outcome: Result<Value, Error>) {
        self.sent = true;
        self.handle
            .respond(self.client, response::to_json(outcome, self.id.take()));
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.sent {
            self.respond(Err(Error::generic("the daemon is about to end")));
        }
    }
}
