//! Protocol state of one QMP client: its greeting, the negotiation of capabilities, and then each request, which is run
//! here, passed on or answered with an error.
//!
//! It takes bytes and returns responses, without sockets. Its caller decides when a request is run: out-of-band requests at
//! once, others after those before them.

use serde_json::{Value, json};

use crate::framing::{Frame, Framer};
use crate::interface::NEGOTIATE_COMMAND;
use crate::request::Request;
use crate::response;
use crate::{CommandHandler, Error, Interface};

/// A request, or the error of a message that is none, with its `id`. As in QEMU, such an error is answered in its turn.
pub(crate) type ParsedRequest = Result<Request, (Option<Value>, Error)>;

/// The action that a request needs.
#[derive(Debug)]
pub(crate) enum SessionAction {
    /// Send this to the client.
    Respond(Value),
    /// Run this request in the program.
    Forward(Request),
}

/// State of a session.
#[derive(Default)]
pub(crate) struct Session {
    framer: Framer,
    /// Capabilities are negotiated: commands are accepted and events sent.
    negotiated: bool,
    /// The client has enabled out-of-band commands.
    oob_enabled: bool,
}

impl Session {
    /// The first message to a client.
    pub fn greeting<C>(interface: &Interface<C>) -> Value {
        let version = interface.product.to_json();
        json!({"QMP": {"version": version, "capabilities": ["oob"]}})
    }

    /// Whether events are sent to this client.
    pub fn wants_qmp_events(&self) -> bool {
        self.negotiated
    }

    /// Consumes bytes until a request is complete; `None` when they are used up.
    pub fn next_request(&mut self, bytes: &mut &[u8]) -> Option<ParsedRequest> {
        Some(match self.framer.next_frame(bytes)? {
            Frame::Message(text) => Request::parse(&text),
            Frame::Bad(reason) => {
                let error = Error::generic(format!("JSON parse error, {reason}"));
                Err((None, error))
            }
        })
    }

    /// Runs a request as far as that does not need the program.
    pub fn run<C>(&mut self, interface: &Interface<C>, request: ParsedRequest) -> SessionAction {
        let (outcome, id) = match request {
            Err((id, error)) => (Err(error), id),
            Ok(request) => match self.try_run_in_session(interface, &request) {
                Ok(None) => return SessionAction::Forward(request),
                Ok(Some(result)) => (Ok(result), request.id),
                Err(error) => (Err(error), request.id),
            },
        };
        SessionAction::Respond(response::to_json(outcome, id))
    }

    /// The result of a request that is run here; `None` if the program has to run it.
    fn try_run_in_session<C>(
        &mut self,
        interface: &Interface<C>,
        request: &Request,
    ) -> Result<Option<Value>, Error> {
        if request.oob && !self.oob_enabled {
            let text = "QMP input member 'exec-oob' is unexpected";
            return Err(Error::generic(text));
        }
        if !self.negotiated {
            return self.negotiate(interface, request).map(Some);
        }
        match interface.find_checked_command(request)?.run {
            CommandHandler::InBand(_) | CommandHandler::Deferred(_) => Ok(None),
            CommandHandler::Immediate(run) => run(interface, &request.arguments).map(Some),
        }
    }

    /// Runs the only command that is allowed first, which enables capabilities.
    fn negotiate<C>(
        &mut self,
        interface: &Interface<C>,
        request: &Request,
    ) -> Result<Value, Error> {
        if request.command != NEGOTIATE_COMMAND {
            let text = "Expecting capabilities negotiation with 'qmp_capabilities'";
            return Err(Error::command_not_found(text));
        }
        interface.find_checked_command(request)?;
        self.oob_enabled = match request.arguments.get("enable") {
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
