//! QMP client for tests.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::deadline::Deadline;
use crate::sockets::{connect, limited};

/// A connected client.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    /// Received, and not taken yet.
    events: Vec<Value>,
}

impl Client {
    /// Connects to a monitor that listens, and negotiates.
    pub fn connect(socket: &Path) -> Self {
        Self::of(connect(socket))
    }

    /// The same over a socket that is connected.
    pub fn of(stream: UnixStream) -> Self {
        let mut client = Self::greeted(stream);
        assert_eq!(client.done("qmp_capabilities", json!({})), json!({}));
        client
    }

    /// One that has only been greeted.
    pub fn greeted(stream: UnixStream) -> Self {
        let mut client = Client {
            stream: BufReader::new(limited(stream)),
            events: Vec::new(),
        };
        let greeting = client.message("the greeting", Deadline::default());
        assert!(greeting["QMP"]["version"]["qemu"].is_object(), "{greeting}");
        client
    }

    /// The next message. `what` is missing if it does not come in time, or if others come in its place until then.
    #[track_caller]
    fn message(&mut self, what: impl Display, deadline: Deadline) -> Value {
        let mut line = Vec::new();
        // As much as is there: a line that never ends is not waited for either.
        while !line.ends_with(b"\n") {
            deadline.check(&what);
            let some = self.stream.fill_buf();
            let some = some.unwrap_or_else(|error| panic!("{what}: {error}"));
            let end = some.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(some.len(), |end| end + 1);
            if count == 0 {
                break;
            }
            line.extend_from_slice(&some[..count]);
            self.stream.consume(count);
        }
        let line = String::from_utf8(line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{what}: {line:?}: {error}"))
    }

    /// The whole answer to a command.
    #[track_caller]
    pub fn ask(&mut self, command: &str, arguments: Value) -> Value {
        self.send(command, &arguments);
        self.answer_to(command)
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, command: &str, arguments: &Value) {
        let request = json!({"execute": command, "arguments": arguments}).to_string();
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// The answer to the first command that has none yet.
    #[track_caller]
    pub fn answer(&mut self) -> Value {
        self.answer_to("a command")
    }

    #[track_caller]
    fn answer_to(&mut self, command: &str) -> Value {
        let deadline = Deadline::default();
        loop {
            let message = self.message(format_args!("an answer to {command}"), deadline);
            if message.get("event").is_none() {
                return message;
            }
            self.events.push(message);
        }
    }

    /// The result of a command that succeeds.
    #[track_caller]
    pub fn done(&mut self, command: &str, arguments: Value) -> Value {
        let mut answer = self.ask(command, arguments);
        assert!(answer.get("return").is_some(), "{command}: {answer}");
        answer["return"].take()
    }

    /// The text of the error of a command that fails.
    #[track_caller]
    pub fn fails(&mut self, command: &str, arguments: Value) -> String {
        let answer = self.ask(command, arguments);
        let text = answer["error"]["desc"].as_str();
        text.unwrap_or_else(|| panic!("{command}: {answer}"))
            .to_owned()
    }

    /// The next event; it may have been received with an answer.
    #[track_caller]
    fn next_event(&mut self, what: impl Display, deadline: Deadline) -> Value {
        if self.events.is_empty() {
            self.message(what, deadline)
        } else {
            self.events.remove(0)
        }
    }

    /// Events that were received before the last answer, and not taken.
    pub fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    /// Waits for an event of this name, and takes its data; those before it are dropped.
    #[track_caller]
    pub fn wait_for_event(&mut self, name: &str) -> Value {
        self.wait_for_event_of(&[name])["data"].take()
    }

    /// Waits for an event of one of these names, and takes it; those before it are dropped.
    #[track_caller]
    pub fn wait_for_event_of(&mut self, names: &[&str]) -> Value {
        let deadline = Deadline::default();
        loop {
            let event = self.next_event(format_args!("{names:?}"), deadline);
            if names.iter().any(|name| event["event"] == *name) {
                return event;
            }
        }
    }

    /// Waits for an event of an export; those before it are dropped.
    #[track_caller]
    pub fn event(&mut self, name: &str, id: &str) {
        let data = json!({"id": id});
        let deadline = Deadline::default();
        loop {
            let event = self.next_event(format_args!("{name} of {id}"), deadline);
            assert!(event["timestamp"]["seconds"].is_u64(), "{event}");
            if event["event"] == name && event["data"] == data {
                return;
            }
        }
    }

    /// Whether an answer has arrived.
    pub fn is_answered(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let (mut answered, deadline) = (false, Deadline::default());
        while !answered && self.stream.fill_buf().is_ok() {
            let message = self.message("the end of the events", deadline);
            answered = message.get("event").is_none();
            self.events.push(message);
        }
        self.stream.get_ref().set_nonblocking(false).unwrap();
        answered
    }

    /// True when the other side has closed, after events at most.
    #[track_caller]
    pub fn at_end(&mut self) -> bool {
        let deadline = Deadline::default();
        loop {
            let some = self.stream.fill_buf();
            let some = some.unwrap_or_else(|error| panic!("the end of the connection: {error}"));
            if some.is_empty() {
                return true;
            }
            let message = self.message("the end of the connection", deadline);
            if message.get("event").is_none() {
                return false;
            }
        }
    }
}
