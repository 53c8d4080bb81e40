//! QMP client for one command to a monitor of a server or of QEMU.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for a reply; only a hanging program reaches it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends a command and returns what it returns.
pub(crate) fn query(socket: &Path, command: &str, arguments: &Value) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut returned = Value::Null;
    for message in [
        json!({"execute": "qmp_capabilities"}),
        json!({"execute": command, "arguments": arguments}),
    ] {
        writeln!(stream, "{message}")?;
        // Skips the greeting and events.
        returned = loop {
            let line = lines
                .next()
                .ok_or_else(|| io::Error::other("the monitor has closed the connection"))??;
            let mut reply: Value = serde_json::from_str(&line)?;
            if let Some(value) = reply.get_mut("return") {
                break value.take();
            } else if let Some(error) = reply.get("error") {
                return Err(io::Error::other(format!("{command} {arguments}: {error}")));
            }
        };
    }
    Ok(returned)
}
