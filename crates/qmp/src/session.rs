//! One client's conversation: from the greeting over the capabilities to commands.
//!
//! Bytes in, answers out; no socket is known here.

use serde_json::{Value, json};

use crate::framing::{Frame, Framer};
use crate::interface::NEGOTIATE;
use crate::request::Request;
use crate::response;
use crate::{Error, Interface, Run};

/// What is to be done next.
#[derive(Debug)]
pub(crate) enum Step {
    /// The client gets this.
    Answer(Value),
    /// The program carries this out.
    Forward(Request),
}

/// Where a conversation stands.
#[derive(Default)]
pub(crate) struct Session {
    framer: Framer,
    /// Commands are taken, and events told.
    negotiated: bool,
    /// The client may go out of band.
    oob: bool,
}

impl Session {
    /// What a client hears first.
    pub fn greeting<C>(interface: &Interface<C>) -> Value {
        let version = interface.product.to_json();
        json!({"QMP": {"version": version, "capabilities": ["oob"]}})
    }

    /// Whether events are for this client.
    pub fn hears_events(&self) -> bool {
        self.negotiated
    }

    /// Takes bytes off the front until there is something to do; `None` when they are used up.
    pub fn next<C>(&mut self, interface: &Interface<C>, bytes: &mut &[u8]) -> Option<Step> {
        let text = match self.framer.next(bytes)? {
            Frame::Message(text) => text,
            Frame::Bad(what) => {
                let error = Error::generic(format!("JSON parse error, {what}"));
                return Some(Step::Answer(response::to_json(Err(error), None)));
            }
        };
        let request = match Request::read(&text) {
            Ok(request) => request,
            Err((id, error)) => return Some(Step::Answer(response::to_json(Err(error), id))),
        };
        let outcome = match self.take(interface, &request) {
            Ok(None) => return Some(Step::Forward(request)),
            Ok(Some(result)) => Ok(result),
            Err(error) => Err(error),
        };
        Some(Step::Answer(response::to_json(outcome, request.id)))
    }

    /// Answers a request, or finds that the program has to.
    fn take<C>(
        &mut self,
        interface: &Interface<C>,
        request: &Request,
    ) -> Result<Option<Value>, Error> {
        if request.oob && !self.oob {
            let text = "QMP input member 'exec-oob' is unexpected";
            return Err(Error::generic(text));
        }
        if !self.negotiated {
            return self.negotiate(interface, request).map(Some);
        }
        match interface.find(request)?.run {
            Run::InBand(_) | Run::Deferred(_) => Ok(None),
            Run::Immediate(run) => run(interface, &request.arguments).map(Some),
        }
    }

    fn negotiate<C>(
        &mut self,
        interface: &Interface<C>,
        request: &Request,
    ) -> Result<Value, Error> {
        if request.command != NEGOTIATE {
            let text = "Expecting capabilities negotiation with 'qmp_capabilities'";
            return Err(Error::no_command(text));
        }
        interface.find(request)?;
        self.oob = match request.arguments.get("enable") {
            Some(Value::Array(capabilities)) => capabilities.iter().any(|name| name == "oob"),
            _ => false,
        };
        self.negotiated = true;
        Ok(json!({}))
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
