//! A server's QMP monitor, with a client that waits for each answer.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::interrupt;

/// For an answer. Only a hanging server takes it.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How often Ctrl-C is looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The words of a server's command line for a monitor at this socket.
pub(crate) fn arguments(socket: &Path) -> [String; 4] {
    let path = socket.display().to_string().replace(',', ",,");
    [
        "--chardev".to_owned(),
        format!("socket,id=c,path={path},server=on,wait=off"),
        "--monitor".to_owned(),
        "chardev=c".to_owned(),
    ]
}

/// A client.
#[derive(Debug)]
pub(crate) struct Monitor {
    stream: UnixStream,
    /// The beginning of a line.
    read: Vec<u8>,
    /// Came before they were waited for.
    events: VecDeque<Value>,
}

impl Monitor {
    /// Over a connection to the monitor's socket.
    pub fn new(stream: UnixStream) -> Result<Self> {
        let mut monitor = Monitor {
            stream,
            read: Vec::new(),
            events: VecDeque::new(),
        };
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// What a command returns. Events that come before its answer are kept.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.stream
            .write_all(line.as_bytes())
            .map_err(Error::io("send a command to the monitor"))?;
        let deadline = Instant::now() + ANSWER_LIMIT;
        while Instant::now() < deadline {
            let Some(mut message) = self.message(LOOK_INTERVAL)? else {
                continue;
            };
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let why = error.get("desc").and_then(Value::as_str);
                return Err(Error::Requests(format!(
                    "{command}: {}",
                    why.unwrap_or("an error without a description")
                )));
            }
            // (The greeting is neither.)
            if message.get("event").is_some() {
                self.events.push_back(message);
            }
        }
        Err(Error::Requests(format!(
            "the monitor has not answered to {command} for {ANSWER_LIMIT:?}"
        )))
    }

    /// The next event, if there is one within so long.
    pub fn event(&mut self, limit: Duration) -> Result<Option<Value>> {
        match self.events.pop_front() {
            Some(event) => Ok(Some(event)),
            None => self.message(limit),
        }
    }

    /// The next line, if there is one within so long.
    fn message(&mut self, limit: Duration) -> Result<Option<Value>> {
        let deadline = Instant::now() + limit;
        loop {
            interrupt::check()?;
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return match serde_json::from_slice(&line) {
                    Ok(message) => Ok(Some(message)),
                    Err(error) => Err(Error::Requests(format!(
                        "the monitor sent a line that is no JSON: {error}"
                    ))),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.receive(left)?;
        }
    }

    /// Reads what comes within so long, which is not 0.
    fn receive(&mut self, limit: Duration) -> Result<()> {
        let doing = || Error::io("read from the monitor");
        self.stream.set_read_timeout(Some(limit)).map_err(doing())?;
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(Error::Gone),
            Ok(count) => {
                self.read.extend(&buffer[..count]);
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(doing()(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client, and the other side of its connection with what it will have read.
    fn connected(lines: &str) -> (Result<Monitor>, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        (Monitor::new(ours), theirs)
    }

    #[test]
    fn event_before_an_answer_is_kept() {
        let lines =
            "{\"QMP\": {}}\n{\"event\": \"A\"}\n{\"return\": {}}\n{\"event\": \"B\"}\n{\"ret";
        let (monitor, mut theirs) = connected(lines);
        let mut monitor = monitor.unwrap();
        for name in ["A", "B"] {
            let event = monitor.event(ANSWER_LIMIT).unwrap().unwrap();
            assert_eq!(event["event"], name);
        }
        assert_eq!(monitor.event(Duration::from_millis(1)).unwrap(), None);
        theirs.write_all(b"urn\": 7}\n").unwrap();
        assert_eq!(monitor.execute("count", &json!({})).unwrap(), 7);
    }

    #[test]
    fn error_names_the_command() {
        let (monitor, _theirs) =
            connected("{\"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\n");
        assert_eq!(monitor.unwrap_err().to_string(), "qmp_capabilities: no");
        let (monitor, theirs) = connected("no JSON\n");
        drop(theirs);
        let error = monitor.unwrap_err().to_string();
        assert!(error.contains("no JSON"), "{error}");
    }
}
