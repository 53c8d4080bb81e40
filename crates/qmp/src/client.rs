//! A connected client: its socket, its session, and the input and output that wait.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::EventFlags;
use serde_json::Value;

use crate::client_count::CountedClient;
use crate::limits::{FULL_OUTPUT_BYTES, MAX_OUTPUT_BYTES, MAX_PENDING};
use crate::request::Request;
use crate::session::{Session, Step};
use crate::{Interface, json_text};

/// Most bytes of one read, so that a client that sends much takes turns with others.
const READ_BYTES: usize = 4096;

/// A connected client.
pub(crate) struct Client {
    pub id: u64,
    /// The events that its socket is polled for.
    pub polled: EventFlags,
    stream: UnixStream,
    _counted: CountedClient,
    session: Session,
    pretty: bool,
    /// Bytes that were read and not processed yet.
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    /// A request of it is in the program.
    in_program: bool,
    /// Requests after that one. They wait, so that responses are in the order of requests.
    queued: VecDeque<Request>,
    /// No more input is read: the client has closed its side, or the server ends.
    input_closed: bool,
    /// The connection is broken, or is given up.
    disconnected: bool,
}

impl Client {
    /// Greets a client. Its socket is not blocking, and is polled for `polled`.
    pub fn new<C>(
        id: u64,
        stream: UnixStream,
        counted: CountedClient,
        pretty: bool,
        interface: &Interface<C>,
        polled: EventFlags,
    ) -> Self {
        let mut client = Client {
            id,
            polled,
            stream,
            _counted: counted,
            session: Session::default(),
            pretty,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            in_program: false,
            queued: VecDeque::new(),
            input_closed: false,
            disconnected: false,
        };
        client.send(&Session::greeting(interface));
        client
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The events to poll its socket for.
    pub fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.reads());
        flags.set(EventFlags::OUT, self.unsent() > 0);
        flags
    }

    /// Whether nothing is left to do for it.
    pub fn is_finished(&self) -> bool {
        let is_idle = self.input.is_empty() && !self.in_program && self.unsent() == 0;
        self.disconnected || self.input_closed && is_idle
    }

    /// Stops reading requests. Those in the program and in the queue are still answered.
    pub fn close_input(&mut self) {
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
        if readiness.contains(EventFlags::IN) && self.reads() {
            self.read();
        } else if readiness.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.disconnected = true;
        }
        if readiness.contains(EventFlags::OUT) {
            self.write();
        }
        self.process_input(interface, forward);
    }

    /// Sends the response to the request that is in the program, and submits the next one.
    pub fn respond<C>(
        &mut self,
        response: &Value,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        self.send(response);
        match self.queued.pop_front() {
            Some(next) => forward(next),
            None => self.in_program = false,
        }
        self.process_input(interface, forward);
    }

    /// Sends an event, if the session is negotiated. A client that has not read for long is disconnected instead.
    pub fn send_event(&mut self, event: &Value) {
        if !self.session.wants_events() || self.disconnected {
            return;
        }
        if self.unsent() > MAX_OUTPUT_BYTES {
            tracing::warn!("a monitor's client does not read: it is disconnected");
            self.disconnected = true;
            return;
        }
        self.send(event);
    }

    /// Processes input while there is room for responses.
    fn process_input<C>(&mut self, interface: &Interface<C>, forward: &mut dyn FnMut(Request)) {
        loop {
            let input = std::mem::take(&mut self.input);
            let mut bytes = input.as_slice();
            while !self.is_full() {
                match self.session.next(interface, &mut bytes) {
                    None => break,
                    Some(Step::Respond(response)) => self.send(&response),
                    Some(Step::Forward(request)) if self.in_program => {
                        self.queued.push_back(request)
                    }
                    Some(Step::Forward(request)) => {
                        self.in_program = true;
                        forward(request);
                    }
                }
            }
            self.input = bytes.to_vec();
            let was_full = self.is_full();
            self.write();
            // Go on only if writing has made room and input is left.
            if self.input.is_empty() || !was_full || self.is_full() || self.disconnected {
                return;
            }
        }
    }

    fn reads(&self) -> bool {
        !self.input_closed && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.pending() >= MAX_PENDING || self.unsent() > FULL_OUTPUT_BYTES
    }

    /// Requests without a response.
    fn pending(&self) -> usize {
        usize::from(self.in_program) + self.queued.len()
    }

    /// Bytes of output that wait to be read by the client.
    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match (&self.stream).read(&mut buffer) {
            Ok(0) => self.input_closed = true,
            Ok(count) => self.input.extend(&buffer[..count]),
            Err(error) if retries(error.kind()) => {}
            Err(_) => self.disconnected = true,
        }
    }

    fn write(&mut self) {
        while self.unsent() > 0 {
            match (&self.stream).write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if retries(error.kind()) => break,
                Err(_) => {
                    self.disconnected = true;
                    return;
                }
            }
        }
        self.output.drain(..self.sent);
        self.sent = 0;
    }

    fn send(&mut self, message: &Value) {
        json_text::write(&mut self.output, message, self.pretty);
        self.output.extend(b"\r\n");
    }
}

fn retries(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
