//! One connected client: its socket, its conversation, and what waits in either direction.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::epoll::EventFlags;
use serde_json::Value;

use crate::client_count::CountedClient;
use crate::limits::{FULL_OUTPUT_BYTES, MAX_OUTPUT_BYTES, MAX_PENDING};
use crate::request::Request;
use crate::session::{Session, Step};
use crate::{Interface, format};

/// Bytes taken off a socket at once, so that a client that sends much takes turns with others.
const READ_BYTES: usize = 4096;

/// A client.
pub(crate) struct Client {
    pub id: u64,
    /// What the kernel was told to wait for.
    pub watched: EventFlags,
    stream: UnixStream,
    _counted: CountedClient,
    session: Session,
    pretty: bool,
    /// Read, and not looked at yet.
    input: Vec<u8>,
    output: Vec<u8>,
    /// So much of the output has gone.
    written: usize,
    /// The program is at a request.
    asked: bool,
    /// Those behind it: so they are carried out, and answered, in their order.
    behind: VecDeque<Request>,
    /// It sends nothing more.
    ended: bool,
    /// It does not take answers any more.
    gone: bool,
}

impl Client {
    /// Greets a client. The socket does not block, and is `watched`.
    pub fn new<C>(
        id: u64,
        stream: UnixStream,
        counted: CountedClient,
        pretty: bool,
        interface: &Interface<C>,
        watched: EventFlags,
    ) -> Self {
        let mut client = Client {
            id,
            watched,
            stream,
            _counted: counted,
            session: Session::default(),
            pretty,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            asked: false,
            behind: VecDeque::new(),
            ended: false,
            gone: false,
        };
        client.say(&Session::greeting(interface));
        client
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// What to wait for.
    pub fn interest(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, self.reads());
        flags.set(EventFlags::OUT, self.waiting() > 0);
        flags
    }

    /// Nothing more is to be done for it.
    pub fn is_finished(&self) -> bool {
        let silent = self.input.is_empty() && !self.asked && self.waiting() == 0;
        self.gone || self.ended && silent
    }

    /// Reads no more requests. Those that were read are answered.
    pub fn end(&mut self) {
        self.ended = true;
        self.input.clear();
    }

    /// Something has happened to the socket.
    pub fn ready<C>(
        &mut self,
        readiness: EventFlags,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        if readiness.contains(EventFlags::IN) && self.reads() {
            self.read();
        } else if readiness.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.gone = true;
        }
        if readiness.contains(EventFlags::OUT) {
            self.write();
        }
        self.proceed(interface, forward);
    }

    /// The program has answered a request.
    pub fn answer<C>(
        &mut self,
        answer: &Value,
        interface: &Interface<C>,
        forward: &mut dyn FnMut(Request),
    ) {
        self.say(answer);
        match self.behind.pop_front() {
            Some(next) => forward(next),
            None => self.asked = false,
        }
        self.proceed(interface, forward);
    }

    /// Tells an event, unless the client is not there yet, or has not read for long: it is gone then.
    pub fn tell(&mut self, event: &Value) {
        if !self.session.hears_events() || self.gone {
            return;
        }
        if self.waiting() > MAX_OUTPUT_BYTES {
            tracing::warn!("a monitor's client does not read: it is disconnected");
            self.gone = true;
            return;
        }
        self.say(event);
    }

    /// Carries out what was read, as far as answers find room.
    fn proceed<C>(&mut self, interface: &Interface<C>, forward: &mut dyn FnMut(Request)) {
        loop {
            let input = std::mem::take(&mut self.input);
            let mut bytes = input.as_slice();
            while !self.is_full() {
                match self.session.next(interface, &mut bytes) {
                    None => break,
                    Some(Step::Answer(answer)) => self.say(&answer),
                    Some(Step::Forward(request)) if self.asked => self.behind.push_back(request),
                    Some(Step::Forward(request)) => {
                        self.asked = true;
                        forward(request);
                    }
                }
            }
            self.input = bytes.to_vec();
            let was_full = self.is_full();
            self.write();
            // Writing has made room: go on, if there is something.
            if self.input.is_empty() || !was_full || self.is_full() || self.gone {
                return;
            }
        }
    }

    fn reads(&self) -> bool {
        !self.ended && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.pending() >= MAX_PENDING || self.waiting() > FULL_OUTPUT_BYTES
    }

    /// Requests that are not answered.
    fn pending(&self) -> usize {
        usize::from(self.asked) + self.behind.len()
    }

    fn waiting(&self) -> usize {
        self.output.len() - self.written
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match (&self.stream).read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => self.input.extend(&buffer[..count]),
            Err(error) if retries(error.kind()) => {}
            Err(_) => self.gone = true,
        }
    }

    fn write(&mut self) {
        while self.waiting() > 0 {
            match (&self.stream).write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if retries(error.kind()) => break,
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
        self.output.drain(..self.written);
        self.written = 0;
    }

    fn say(&mut self, message: &Value) {
        format::write(&mut self.output, message, self.pretty);
        self.output.extend(b"\r\n");
    }
}

fn retries(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
