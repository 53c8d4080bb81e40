//! A client of a monitor: one connection, one command at a time.
//!
//! It speaks with whoever speaks QMP. Messages may be spread over lines, as `pretty=on` does, so a message
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

/// A monitor greets as soon as it has accepted: whoever waits longer waits for something else.
const GREETING_WITHIN: Duration = Duration::from_secs(3);
const READ_BYTES: usize = 64 * 1024;
/// So much is shown of what is not a monitor.
const SHOWN_CHARS: usize = 60;

/// A client that is through the negotiation.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: UnixStream,
    /// Read, and not looked at yet.
    input: Vec<u8>,
    /// Told, and not asked for yet.
    events: VecDeque<Value>,
    /// How long an answer may take; `None`: for ever.
    timeout: Option<Duration>,
    /// Of the last command.
    id: u64,
}

impl Client {
    /// Connects to the monitor that listens at `path`. Each answer may take as long as `timeout`.
    ///
    /// # Errors
    /// What is there instead of a monitor, and what to do.
    pub fn connect(path: &Path, timeout: Option<Duration>) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| why_not(path, error))?;
        let mut client = Client {
            path: path.to_owned(),
            stream,
            input: Vec::new(),
            events: VecDeque::new(),
            timeout,
            id: 0,
        };
        client.be_greeted()?;
        client.execute("qmp_capabilities", Map::new())?;
        Ok(client)
    }

    fn be_greeted(&mut self) -> Result<()> {
        let within = self.timeout.unwrap_or(GREETING_WITHIN).min(GREETING_WITHIN);
        match self.message(Some(Instant::now() + within)) {
            Ok(Some(greeting)) if greeting.get("QMP").is_some() => Ok(()),
            Ok(Some(other)) => Err(self.not_qmp(other.to_string().as_bytes())),
            Ok(None) | Err(_) if !self.input.is_empty() => Err(self.not_qmp(&self.input)),
            Ok(None) => Err(Error::Silent {
                path: self.path.clone(),
                waited: within,
            }),
            Err(error) => Err(error),
        }
    }

    fn not_qmp(&self, said: &[u8]) -> Error {
        let said = String::from_utf8_lossy(said);
        let said = said.chars().map(|c| if c.is_control() { ' ' } else { c });
        Error::NotQmp {
            path: self.path.clone(),
            said: said.take(SHOWN_CHARS).collect::<String>().trim().to_owned(),
        }
    }

    /// Carries out a command and gives what it returns.
    ///
    /// # Errors
    /// [`Error::Refused`] is the daemon's; [`Error::Unanswered`], [`Error::Gone`].
    pub fn execute(&mut self, command: &str, arguments: Map<String, Value>) -> Result<Value> {
        let mut request = json!({"execute": command});
        if !arguments.is_empty() {
            request["arguments"] = arguments.into();
        }
        self.request(request)
    }

    /// The same with a request as it is sent, but for its `id`.
    ///
    /// # Errors
    /// As of [`Client::execute`].
    pub fn request(&mut self, mut request: Value) -> Result<Value> {
        self.id += 1;
        request["id"] = self.id.into();
        self.send(&request)?;
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let Some(mut answer) = self.message(until)? else {
                return Err(Error::Unanswered {
                    command: shown_command(&request),
                    waited: self.timeout.unwrap_or_default(),
                });
            };
            if answer.get("event").is_some() {
                self.events.push_back(answer);
            } else if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            } else {
                let text = |key: &str| {
                    let text = answer.pointer(key).and_then(Value::as_str);
                    text.unwrap_or_default().to_owned()
                };
                return Err(Error::Refused {
                    class: text("/error/class"),
                    desc: text("/error/desc"),
                });
            }
        }
    }

    /// The next event, however long it takes.
    ///
    /// # Errors
    /// [`Error::Gone`] when the daemon ends.
    pub fn event(&mut self) -> Result<Value> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            // Nothing else comes unasked.
            let told = self.message(None)?;
            self.events.extend(told);
        }
    }

    fn send(&self, request: &Value) -> Result<()> {
        let line = format!("{request}\n");
        let sent = self
            .stream
            .set_write_timeout(self.timeout)
            .and_then(|()| (&self.stream).write_all(line.as_bytes()));
        sent.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Error::Gone,
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Unanswered {
                command: shown_command(request),
                waited: self.timeout.unwrap_or_default(),
            },
            _ => Error::io(format!("write to {}", self.path.display()))(error),
        })
    }

    /// The next message; `None` if it has not come in time.
    fn message(&mut self, until: Option<Instant>) -> Result<Option<Value>> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let doing = || format!("read from {}", self.path.display());
            let waits = self.stream.set_read_timeout(left);
            waits.map_err(Error::io(doing()))?;
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(Error::Gone),
                Ok(count) => self.input.extend(&buffer[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                    ErrorKind::Interrupted if signals::termination_requested() => {
                        return Err(Error::Interrupted);
                    }
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Error::Gone),
                    _ => return Err(Error::io(doing())(error)),
                },
            }
        }
    }

    /// A message that is there as a whole. Its last line ends it, so that a long one is not parsed again at
    /// each piece of it.
    fn take_message(&mut self) -> Result<Option<Value>> {
        if self.input.last() != Some(&b'\n') {
            return Ok(None);
        }
        let mut values = serde_json::Deserializer::from_slice(&self.input).into_iter::<Value>();
        let found = match values.next() {
            None => return Ok(None),
            Some(Err(error)) if error.is_eof() => return Ok(None),
            Some(Err(error)) => {
                let doing = format!("understand what {} says", self.path.display());
                return Err(Error::io(doing)(std::io::Error::from(error)));
            }
            Some(Ok(value)) => value,
        };
        let end = values.byte_offset();
        self.input.drain(..end);
        Ok(Some(found))
    }
}

fn shown_command(request: &Value) -> String {
    let named = request.get("execute").or_else(|| request.get("exec-oob"));
    let named = named.and_then(Value::as_str);
    named.unwrap_or("the request").to_owned()
}

/// Why there is no connection.
fn why_not(path: &Path, error: std::io::Error) -> Error {
    let is_socket = || std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound => Error::NoSocket(path),
        ErrorKind::ConnectionRefused if !is_socket() => Error::NotASocket(path),
        ErrorKind::ConnectionRefused => Error::NobodyListens(path),
        ErrorKind::PermissionDenied => Error::NotAllowed(path),
        ErrorKind::InvalidInput => Error::TooLong(path),
        _ => Error::io(format!("connect to {}", path.display()))(error),
    }
}
