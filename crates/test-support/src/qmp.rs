//! A client of a monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::deadline::STUCK_AFTER;

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
        Self::of(UnixStream::connect(socket).unwrap())
    }

    /// The same over a socket that is connected.
    pub fn of(stream: UnixStream) -> Self {
        let mut client = Self::greeted(stream);
        assert_eq!(client.done("qmp_capabilities", json!({})), json!({}));
        client
    }

    /// One that has only been greeted.
    pub fn greeted(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        let mut client = Client {
            stream: BufReader::new(stream),
            events: Vec::new(),
        };
        let greeting = client.message();
        assert!(greeting["QMP"]["version"]["qemu"].is_object(), "{greeting}");
        client
    }

    fn message(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// The whole answer to a command.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Value {
        self.send(command, &arguments);
        self.answer()
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, command: &str, arguments: &Value) {
        let request = json!({"execute": command, "arguments": arguments}).to_string();
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// The answer to the first command that has none yet.
    pub fn answer(&mut self) -> Value {
        loop {
            let message = self.message();
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
    fn next_event(&mut self) -> Value {
        if self.events.is_empty() {
            self.message()
        } else {
            self.events.remove(0)
        }
    }

    /// Events that were received before the last answer, and not taken.
    pub fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    /// Waits for an event of this name, and takes its data; those before it are dropped.
    pub fn told(&mut self, name: &str) -> Value {
        loop {
            let mut event = self.next_event();
            if event["event"] == name {
                return event["data"].take();
            }
        }
    }

    /// Waits for an event of an export; those before it are dropped.
    pub fn event(&mut self, name: &str, id: &str) {
        let data = json!({"id": id});
        loop {
            let event = self.next_event();
            assert!(event["timestamp"]["seconds"].is_u64(), "{event}");
            if event["event"] == name && event["data"] == data {
                return;
            }
        }
    }

    /// Whether an answer has arrived.
    pub fn is_answered(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let mut answered = false;
        while !answered && self.stream.fill_buf().is_ok() {
            let message = self.message();
            answered = message.get("event").is_none();
            self.events.push(message);
        }
        self.stream.get_ref().set_nonblocking(false).unwrap();
        answered
    }

    /// True when the other side has closed, after events at most.
    pub fn at_end(&mut self) -> bool {
        while !self.stream.fill_buf().unwrap().is_empty() {
            if self.message().get("event").is_none() {
                return false;
            }
        }
        true
    }
}
