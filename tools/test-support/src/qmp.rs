//! QMP client for tests.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Write};
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
            let some = self.some_bytes(&what, deadline);
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

    /// Bytes that have arrived; none at the end of the connection.
    #[track_caller]
    fn some_bytes(&mut self, what: &impl Display, deadline: Deadline) -> &[u8] {
        loop {
            deadline.check(what);
            match self.stream.fill_buf() {
                Ok(_) => return self.stream.buffer(),
                // This process was stopped and continued.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{what}: {error}"),
            }
        }
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

    /// Executes [commands in words](command) that succeed, one a line, and returns the result of the last one.
    #[track_caller]
    pub fn execute(&mut self, lines: &str) -> Value {
        let mut result = Value::Null;
        for line in lines.lines() {
            let (name, arguments) = command(line);
            result = self.done(&name, arguments);
        }
        result
    }

    /// The text of the error of a [command in words](command) that fails.
    #[track_caller]
    pub fn error_of(&mut self, line: &str) -> String {
        let (name, arguments) = command(line);
        self.fails(&name, arguments)
    }

    /// Asserts that each of these [commands in words](command) fails with an error that contains the text behind it; lines are
    /// `COMMAND => TEXT`.
    #[track_caller]
    pub fn assert_errors(&mut self, lines: &str) {
        for line in lines.lines() {
            let (command, expected) = line.split_once(" => ").expect(line);
            let error = self.error_of(command);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    /// Reopens nodes; the options of each are a line of [words](arguments).
    #[track_caller]
    pub fn reopen(&mut self, nodes: &str) {
        self.done("blockdev-reopen", reopen_arguments(nodes));
    }

    /// The text of the error when these nodes are reopened.
    #[track_caller]
    pub fn reopen_error(&mut self, nodes: &str) -> String {
        self.fails("blockdev-reopen", reopen_arguments(nodes))
    }

    /// A node, as `query-named-block-nodes` shows it.
    #[track_caller]
    pub fn node(&mut self, name: &str) -> Value {
        let nodes = self.done("query-named-block-nodes", json!({}));
        entry(&nodes, "node-name", name)
    }

    /// An export, as `query-block-exports` shows it.
    #[track_caller]
    pub fn export(&mut self, id: &str) -> Value {
        let exports = self.done("query-block-exports", json!({}));
        entry(&exports, "id", id)
    }

    /// An export's entry of `query-blockstats`.
    #[track_caller]
    pub fn block_stats(&mut self, export: &str) -> Value {
        let exports = self.done("query-blockstats", json!({}));
        entry(&exports, "export", export)
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
            let what = "the end of the connection";
            if self.some_bytes(&what, deadline).is_empty() {
                return true;
            }
            let message = self.message(what, deadline);
            if message.get("event").is_none() {
                return false;
            }
        }
    }
}

/// The entry of a list whose member `key` is `value`.
#[track_caller]
fn entry(list: &Value, key: &str, value: &str) -> Value {
    let mut entries = list.as_array().unwrap().iter();
    let found = entries.find(|entry| entry[key] == *value);
    found
        .unwrap_or_else(|| panic!("no {key} {value} in {list}"))
        .clone()
}

/// A command and its arguments in words, as `blockplane qmp` takes them: `object-add qom-type=iothread id=io0`.
#[must_use]
pub fn command(line: &str) -> (String, Value) {
    let line = line.trim();
    let (name, words) = line.split_once(' ').unwrap_or((line, ""));
    (name.to_owned(), arguments(words))
}

/// Arguments in words. A value that is JSON is taken as such, any other as a string. Dots nest, and numbers make lists:
/// `inject-error.0.errno=5`. The last of a repeated key counts.
#[must_use]
pub fn arguments(words: &str) -> Value {
    let mut arguments = json!({});
    for word in words.split_whitespace() {
        let (key, text) = word.split_once('=').expect(word);
        let mut place = &mut arguments;
        for name in key.split('.') {
            place = match name.parse::<usize>() {
                Ok(index) => list_element(place, index),
                Err(_) => &mut place[name],
            };
        }
        *place = serde_json::from_str(text).unwrap_or_else(|_| text.into());
    }
    arguments
}

/// An element of a list, which may be one more than there are.
fn list_element(list: &mut Value, index: usize) -> &mut Value {
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut().unwrap();
    if index == list.len() {
        list.push(Value::Null);
    }
    &mut list[index]
}

/// Arguments of `blockdev-reopen`: the options of each node are a line of [words](arguments).
#[must_use]
pub fn reopen_arguments(nodes: &str) -> Value {
    let nodes: Vec<Value> = nodes.lines().map(arguments).collect();
    json!({"options": nodes})
}
