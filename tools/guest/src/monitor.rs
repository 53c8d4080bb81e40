//! QMP client for one command to a monitor of a server or of QEMU.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::error::{Error, Result};

/// Time limit for a reply; only a hanging program reaches it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Executes a command of QEMU's monitor at `socket`, see [`Boot::monitor`](crate::Boot::monitor);
/// `arguments` are JSON.
///
/// # Errors
/// [`Error::Io`] with the error that QEMU replies.
pub fn execute(socket: &Path, command: &str, arguments: &str) -> Result<()> {
    query(socket, command, arguments)
        .map(drop)
        .map_err(Error::io(format!("{command} {arguments} in QEMU")))
}

/// Sends a command and returns its reply.
pub(crate) fn query(socket: &Path, command: &str, arguments: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut reply = String::new();
    for message in [
        r#"{"execute": "qmp_capabilities"}"#.to_owned(),
        format!(r#"{{"execute": "{command}", "arguments": {arguments}}}"#),
    ] {
        writeln!(stream, "{message}")?;
        loop {
            let line = lines
                .next()
                .ok_or_else(|| io::Error::other("the monitor has closed the connection"))??;
            // Skips the greeting and events.
            if line.starts_with(r#"{"return""#) {
                reply = line;
                break;
            } else if line.starts_with(r#"{"error""#) {
                return Err(io::Error::other(line));
            }
        }
    }
    Ok(reply)
}
