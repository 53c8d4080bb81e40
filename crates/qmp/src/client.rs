//! The server's side of one QMP client's connection: reads and writes its socket, runs its session, and limits the requests and
//! output that wait.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::EventFlags;
use serde_json::Value;

use crate::client_count::CountedClient;
use crate::limits::{FULL_OUTPUT_BYTES, MAX_OUTPUT_BYTES, MAX_PENDING};
use crate::request::Request;
use crate::session::{ParsedRequest, Session, SessionAction};
use crate::{Interface, json_text};

/// Most bytes of one read, so that a client that sends much takes turns with others.
const READ_BYTES: usize = 4096;

/// A connected client.
pub(crate) struct Client {
    pub id: u64,
    /// The events that its socket is polled for.
    pub polled_events: EventFlags,
    stream: UnixStream,
    _counted: CountedClient,
    session: Session,
    pretty: bool,
    /// Bytes that were read and not processed yet.
    input: Vec<u8>,
    /// Messages as text, of which the client has not read everything.
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent_bytes: usize,
    /// A request of it is in the program.
    has_request_in_program: bool,
    /// In-band requests after that one. They wait, so that responses are in the order of requests.
    queued: VecDeque<ParsedRequest>,
    /// No more input is read: the client has closed its side, or the server ends.
    input_closed: bool,
    /// The connection is broken, or is given up.
    disconnected: bool,
}

impl Client {
    /// Greets a client. Its socket is not blocking, and is polled for `polled_events`.
    pub fn with_greeting<C>(
        id: u64,
        stream: UnixStream,
        counted: CountedClient,
        pretty: bool,
        interface: &Interface<C>,
        polled_events: EventFlags,
    ) -> Self {
        let mut client = Client {
            id,
            polled_events,
            stream,
            _counted: counted,
            session: Session::default(),
            pretty,
            input: Vec::new(),
            output: Vec::new(),
            sent_bytes: 0,
            has_request_in_program: false,
            queued: VecDeque::new(),
            input_closed: false,
            disconnected: false,
        };
        client.append_output(&Session::greeting(interface));
        client
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The events to poll its socket for.
    pub fn wanted_poll_events(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.can_take_input());
        flags.set(EventFlags::OUT, self.unsent_bytes() > 0);
        flags
    }

    /// Whether nothing is left to do for it.
    pub fn is_finished(&self) -> bool {
        let is_idle =
            self.input.is_empty() && !self.has_request_in_program && self.unsent_bytes() == 0;
        self.disconnected || self.input_closed && is_idle
    }

    /// Stops reading requests. Those in the program and in the queue are still answered.
    pub fn discard_and_close_input(&mut self) {
        self.input_closed = true;
        self.input.clear();
    }

    /// Reads and writes as far as the socket is ready.
    pub fn handle_ready<C>(
        &mut self,
        readiness: EventFlags,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        if readiness.contains(EventFlags::IN) && self.can_take_input() {
            self.read_socket();
        } else if readiness.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.disconnected = true;
        }
        if readiness.contains(EventFlags::OUT) {
            self.write_socket();
        }
        self.process_input_and_write(interface, forward);
    }

    /// Sends the response to the request that is in the program, and runs those that waited for it.
    pub fn respond_and_run_queued<C>(
        &mut self,
        response: &Value,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        self.append_output(response);
        self.has_request_in_program = false;
        self.run_queued(interface, forward);
        self.process_input_and_write(interface, forward);
    }

    /// Sends an event, if the session is negotiated. A client that has not read for long is disconnected instead.
    pub fn send_event_or_disconnect(&mut self, event: &Value) {
        if !self.session.wants_qmp_events() || self.disconnected {
            return;
        }
        if self.unsent_bytes() > MAX_OUTPUT_BYTES {
            tracing::warn!("a monitor's client does not read: it is disconnected");
            self.disconnected = true;
            return;
        }
        self.append_output(event);
    }

    /// Processes input while there is room for responses.
    fn process_input_and_write<C>(
        &mut self,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        loop {
            let input = std::mem::take(&mut self.input);
            let mut bytes = input.as_slice();
            while !self.has_reached_limits() {
                match self.session.next_request(&mut bytes) {
                    None => break,
                    Some(Ok(request)) if request.oob => {
                        self.run_request(Ok(request), interface, forward);
                    }
                    Some(request) => {
                        self.queued.push_back(request);
                        self.run_queued(interface, forward);
                    }
                }
            }
            self.input = bytes.to_vec();
            let had_reached_limits = self.has_reached_limits();
            self.write_socket();
            // Go on only if writing has made room and input is left.
            if self.input.is_empty()
                || !had_reached_limits
                || self.has_reached_limits()
                || self.disconnected
            {
                return;
            }
        }
    }

    /// Runs waiting requests in order, until one of them is in the program or none is left.
    fn run_queued<C>(&mut self, interface: &Interface<C>, forward: &mut dyn FnMut(Request)) {
        while !self.has_request_in_program
            && let Some(request) = self.queued.pop_front()
        {
            self.run_request(request, interface, forward);
        }
    }

    /// Responds to a request, or passes it to the program, which an out-of-band request never needs.
    fn run_request<C>(
        &mut self,
        request: ParsedRequest,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        match self.session.run(interface, request) {
            SessionAction::Respond(response) => self.append_output(&response),
            SessionAction::Forward(request) => {
                self.has_request_in_program = true;
                forward(request);
            }
        }
    }

    /// Whether its socket is to be read.
    fn can_take_input(&self) -> bool {
        !self.input_closed && !self.has_reached_limits()
    }

    /// Whether it has as many requests, or as much unread output, as it may: then none of its input is processed.
    fn has_reached_limits(&self) -> bool {
        self.pending_request_count() >= MAX_PENDING || self.unsent_bytes() > FULL_OUTPUT_BYTES
    }

    /// Number of requests without a response.
    fn pending_request_count(&self) -> usize {
        usize::from(self.has_request_in_program) + self.queued.len()
    }

    /// Bytes of output that wait to be read by the client.
    fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent_bytes
    }

    /// Reads once from the socket.
    fn read_socket(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match (&self.stream).read(&mut buffer) {
            Ok(0) => self.input_closed = true,
            Ok(count) => self.input.extend(&buffer[..count]),
            Err(error) if is_retryable(error.kind()) => {}
            Err(_) => self.disconnected = true,
        }
    }

    /// Writes output as far as the socket takes it.
    fn write_socket(&mut self) {
        while self.unsent_bytes() > 0 {
            match (&self.stream).write(&self.output[self.sent_bytes..]) {
                Ok(count) => self.sent_bytes += count,
                Err(error) if is_retryable(error.kind()) => break,
                Err(_) => {
                    self.disconnected = true;
                    return;
                }
            }
        }
        self.output.drain(..self.sent_bytes);
        self.sent_bytes = 0;
    }

    /// Appends a message to the output.
    fn append_output(&mut self, message: &Value) {
        json_text::append_json(&mut self.output, message, self.pretty);
        self.output.extend(b"\r\n");
    }
}

/// Whether the socket is only not ready.
fn is_retryable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
