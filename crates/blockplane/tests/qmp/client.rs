//! A client of a monitor, as simple as can be.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::process::STUCK_AFTER;

/// A client that is through the negotiation.
pub struct Client {
    stream: BufReader<UnixStream>,
    /// Told so far and not asked for.
    events: Vec<Value>,
}

impl Client {
    /// Connects to a monitor that is there.
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
        let greeting = client.line();
        assert!(greeting["QMP"]["version"]["qemu"].is_object(), "{greeting}");
        client
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// The whole answer to a command.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Value {
        self.send(command, &arguments);
        self.answer()
    }

    /// Says a command without waiting for its answer.
    pub fn send(&mut self, command: &str, arguments: &Value) {
        let request = json!({"execute": command, "arguments": arguments}).to_string();
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// The answer to the first command that has none yet.
    pub fn answer(&mut self) -> Value {
        loop {
            let message = self.line();
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

    /// Waits for an event of this name, and takes its data; those before it are forgotten.
    pub fn told(&mut self, name: &str) -> Value {
        loop {
            let mut event = if self.events.is_empty() {
                self.line()
            } else {
                self.events.remove(0)
            };
            if event["event"] == name {
                return event["data"].take();
            }
        }
    }

    /// All that it was told before the last answer, and that nobody has asked for.
    pub fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    /// Waits for an event of an export; those before it, and what they were of, are forgotten.
    pub fn event(&mut self, name: &str, id: &str) {
        let data = json!({"id": id});
        loop {
            let event = if self.events.is_empty() {
                self.line()
            } else {
                self.events.remove(0)
            };
            assert!(event["timestamp"]["seconds"].is_u64(), "{event}");
            if event["event"] == name && event["data"] == data {
                return;
            }
        }
    }

    /// Whether there is an answer that was not heard yet.
    pub fn is_answered(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let mut answered = false;
        while !answered && self.stream.fill_buf().is_ok() {
            let message = self.line();
            answered = message.get("event").is_none();
            self.events.push(message);
        }
        self.stream.get_ref().set_nonblocking(false).unwrap();
        answered
    }

    /// True when the other side has closed, after events at most.
    pub fn at_end(&mut self) -> bool {
        while !self.stream.fill_buf().unwrap().is_empty() {
            if self.line().get("event").is_none() {
                return false;
            }
        }
        true
    }
}
