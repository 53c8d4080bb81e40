//! A server's QMP monitor, with a client that waits for each answer.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bench::{Error, Result};
use serde_json::{Value, json};

/// For an answer. Only a hanging server takes it.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The words of a server's command line for a monitor at this socket.
pub(crate) fn arguments(socket: &Path) -> [String; 4] {
    [
        "--chardev".to_owned(),
        format!("socket,id=c,path={},server=on,wait=off", socket.display()),
        "--monitor".to_owned(),
        "chardev=c".to_owned(),
    ]
}

/// A client.
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Came before they were waited for.
    events: Vec<Value>,
}

impl Monitor {
    /// Over a connection to the monitor's socket.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let mut monitor = Monitor {
            stream: BufReader::new(stream),
            line: Vec::new(),
            events: Vec::new(),
        };
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Waits until a command has succeeded. Events that come before its answer are kept.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        sent.map_err(Error::io("send a command to the monitor"))?;
        loop {
            match self.message(ANSWER_LIMIT)? {
                None => return Err(failed(format!("no answer to {command}"))),
                Some(message) if message.get("return").is_some() => return Ok(()),
                Some(message) if message.get("error").is_some() => {
                    return Err(failed(format!("{command}: {message}")));
                }
                // (Or the greeting.)
                Some(event) => self.events.push(event),
            }
        }
    }

    /// The next event, if there is one within so long.
    pub fn event(&mut self, limit: Duration) -> Result<Option<Value>> {
        match self.events.is_empty() {
            true => self.message(limit),
            false => Ok(Some(self.events.remove(0))),
        }
    }

    fn message(&mut self, limit: Duration) -> Result<Option<Value>> {
        let doing = || Error::io("read from the monitor");
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(limit)).map_err(doing())?;
        match self.stream.read_until(b'\n', &mut self.line) {
            Ok(0) => Err(Error::Gone),
            Ok(_) => {
                let message = serde_json::from_slice(&self.line);
                self.line.clear();
                message.map(Some).map_err(|error| failed(error.to_string()))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(doing()(error)),
        }
    }
}

fn failed(why: String) -> Error {
    Error::Requests(format!("the monitor: {why}"))
}
