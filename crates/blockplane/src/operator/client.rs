//! QMP client: one connection to a monitor, one command at a time.
//!
//! It works with any QMP monitor. Messages may span several lines, as with `pretty=on`, so a message
//! ends where its JSON does.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use commands::signals;
use serde_json::{Map, Value, json};

use crate::operator::error::{Error, Result};

/// A monitor sends its greeting as soon as it has accepted; without one by then, the socket is no monitor.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes to read at once.
const READ_BYTES: usize = 64 * 1024;
/// Characters of a foreign protocol's data that an error message quotes.
const QUOTED_CHARS: usize = 60;

/// A connection to a monitor, after capabilities negotiation.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    /// Bytes that were read and not parsed yet.
    unparsed: Vec<u8>,
    /// Events that arrived and were not taken yet.
    events: VecDeque<Value>,
    /// Time limit for a reply; `None`: no limit.
    timeout: Option<Duration>,
    /// The `id` of the last command, and its name.
    last_id: u64,
    last_command: String,
}

impl Client {
    /// Connects to the monitor that listens at `path`; `timeout` limits each reply.
    ///
    /// # Errors
    /// The path has no monitor; the error says what is there instead.
    pub fn connect(path: &Path, timeout: Option<Duration>) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| connect_error(path, error))?;
        let mut client = Client {
            path: path.to_owned(),
            stream,
            unparsed: Vec::new(),
            events: VecDeque::new(),
            timeout,
            last_id: 0,
            last_command: String::new(),
        };
        client.read_greeting()?;
        client.execute("qmp_capabilities", Map::new())?;
        Ok(client)
    }

    /// Waits for the greeting, which only monitors send.
    fn read_greeting(&mut self) -> Result<()> {
        let time_limit = self
            .timeout
            .unwrap_or(GREETING_TIMEOUT)
            .min(GREETING_TIMEOUT);
        match self.next_message(Some(Instant::now() + time_limit)) {
            Ok(Some(greeting)) if greeting.get("QMP").is_some() => Ok(()),
            Ok(Some(other)) => Err(self.not_a_monitor_error(other.to_string().as_bytes())),
            Ok(None) | Err(_) if !self.unparsed.is_empty() => {
                Err(self.not_a_monitor_error(&self.unparsed))
            }
            Ok(None) => Err(Error::NoGreeting {
                path: self.path.clone(),
                waited: time_limit,
            }),
            Err(error) => Err(error),
        }
    }

    /// The error that quotes what was received instead of a greeting.
    fn not_a_monitor_error(&self, received: &[u8]) -> Error {
        let received = String::from_utf8_lossy(received);
        let received = received
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c });
        Error::NotAMonitor {
            path: self.path.clone(),
            received: received
                .take(QUOTED_CHARS)
                .collect::<String>()
                .trim()
                .to_owned(),
        }
    }

    /// Executes a command and returns the value of its reply.
    ///
    /// # Errors
    /// [`Error::Command`] is an error reply of the daemon; else [`Error::Timeout`], [`Error::Disconnected`].
    pub fn execute(&mut self, command: &str, arguments: Map<String, Value>) -> Result<Value> {
        let mut request = json!({"execute": command});
        if !arguments.is_empty() {
            request["arguments"] = arguments.into();
        }
        self.execute_request(request)
    }

    /// Executes a command whose arguments are this object.
    ///
    /// # Errors
    /// See [`Client::execute`].
    pub fn execute_with(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.execute_request(json!({"execute": command, "arguments": arguments}))
    }

    /// The same; a signal to end this command does not end the wait.
    ///
    /// # Errors
    /// See [`Client::execute`], but for [`Error::Interrupted`].
    pub fn execute_to_end(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut reply = self.execute_with(command, arguments);
        while let Err(Error::Interrupted) = reply {
            reply = self.wait_for_reply();
        }
        reply
    }

    /// Sends a complete request, to which the client adds the `id`, and returns the value of its reply.
    ///
    /// # Errors
    /// See [`Client::execute`].
    pub fn execute_request(&mut self, mut request: Value) -> Result<Value> {
        self.last_id += 1;
        request["id"] = self.last_id.into();
        self.send(&request)?;
        self.last_command = command_name(&request);
        self.wait_for_reply()
    }

    /// The value of the reply to the last command, whose wait was interrupted.
    ///
    /// # Errors
    /// See [`Client::execute`].
    pub fn wait_for_reply(&mut self) -> Result<Value> {
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let Some(mut message) = self.next_message(until)? else {
                return Err(Error::Timeout {
                    command: self.last_command.clone(),
                    waited: self.timeout.unwrap_or_default(),
                });
            };
            if message.get("event").is_some() {
                self.events.push_back(message);
            } else if message.get("id").is_some_and(|id| *id != self.last_id) {
                // The reply to a command whose wait was interrupted.
            } else if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            } else {
                let text = |key: &str| {
                    let text = message.pointer(key).and_then(Value::as_str);
                    text.unwrap_or_default().to_owned()
                };
                return Err(Error::Command {
                    class: text("/error/class"),
                    desc: text("/error/desc"),
                });
            }
        }
    }

    /// The next event, however long it takes.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon ends; [`Error::Interrupted`].
    pub fn next_event(&mut self) -> Result<Value> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            // Nothing else comes unasked.
            let event = self.next_message(None)?;
            self.events.extend(event);
        }
    }

    /// Waits for replies for at least so long from now on.
    pub fn wait_at_least(&mut self, timeout: Duration) {
        self.timeout = self.timeout.map(|limit| limit.max(timeout));
    }

    /// Waits for replies as long as it takes from now on.
    pub fn wait_without_limit(&mut self) {
        self.timeout = None;
    }

    /// The user and the group of the process at the other end, as they were when it began to listen.
    #[must_use]
    pub fn peer(&self) -> Option<(u32, u32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream).ok()?;
        Some((peer.uid.as_raw(), peer.gid.as_raw()))
    }

    /// Writes a request as a line.
    fn send(&self, request: &Value) -> Result<()> {
        let line = format!("{request}\n");
        let sent = self
            .stream
            .set_write_timeout(self.timeout)
            .and_then(|()| (&self.stream).write_all(line.as_bytes()));
        sent.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Error::Disconnected,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout {
                command: command_name(request),
                waited: self.timeout.unwrap_or_default(),
            },
            _ => Error::io(format!("write to {}", self.path.display()))(error),
        })
    }

    /// The next message; `None` if it does not arrive by `until`.
    fn next_message(&mut self, until: Option<Instant>) -> Result<Option<Value>> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if let Some(message) = self.parse_buffered_message()? {
                return Ok(Some(message));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let doing = || format!("read from {}", self.path.display());
            let limited = self.stream.set_read_timeout(left);
            limited.map_err(Error::io(doing()))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Disconnected),
                Ok(count) => self.unparsed.extend(&buffer[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                    ErrorKind::Interrupted if signals::termination_requested() => {
                        return Err(Error::Interrupted);
                    }
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Error::Disconnected),
                    _ => return Err(Error::io(doing())(error)),
                },
            }
        }
    }

    /// Parses the next message, if it has arrived completely. That is tried only after a line break, so that a long message
    /// is not parsed again with each piece of it.
    fn parse_buffered_message(&mut self) -> Result<Option<Value>> {
        if self.unparsed.last() != Some(&b'\n') {
            return Ok(None);
        }
        let mut values = serde_json::Deserializer::from_slice(&self.unparsed).into_iter::<Value>();
        let found = match values.next() {
            None => return Ok(None),
            Some(Err(error)) if error.is_eof() => return Ok(None),
            Some(Err(error)) => {
                let doing = format!("parse a message of {}", self.path.display());
                return Err(Error::io(doing)(std::io::Error::from(error)));
            }
            Some(Ok(value)) => value,
        };
        let end = values.byte_offset();
        self.unparsed.drain(..end);
        Ok(Some(found))
    }
}

/// The name of the command in a request, for errors.
fn command_name(request: &Value) -> String {
    let named = request.get("execute").or_else(|| request.get("exec-oob"));
    let named = named.and_then(Value::as_str);
    named.unwrap_or("the request").to_owned()
}

/// The error for a failed connection, by what is at the path.
fn connect_error(path: &Path, error: std::io::Error) -> Error {
    let is_socket = || std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound => Error::NoSocket(path),
        ErrorKind::ConnectionRefused if !is_socket() => Error::NotASocket(path),
        ErrorKind::ConnectionRefused => Error::NotListening(path),
        ErrorKind::PermissionDenied => Error::PermissionDenied(path),
        ErrorKind::InvalidInput => Error::PathTooLong(path),
        _ => Error::io(format!("connect to {}", path.display()))(error),
    }
}
