//! One command to a server's monitor, in QMP.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Only a server that hangs takes it.
const LIMIT: Duration = Duration::from_secs(20);

/// A server's monitor is beside the socket of its disk.
pub(crate) fn beside(socket: &Path) -> PathBuf {
    socket.with_file_name("qmp.sock")
}

/// Carries out a command and returns when it is done.
///
/// # Errors
/// That of the connection, or the answer, where that is an error.
pub(crate) fn execute(socket: &Path, command: &str, arguments: &str) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    for message in [
        r#"{"execute": "qmp_capabilities"}"#.to_owned(),
        format!(r#"{{"execute": "{command}", "arguments": {arguments}}}"#),
    ] {
        writeln!(stream, "{message}")?;
        loop {
            let line = lines
                .next()
                .ok_or_else(|| io::Error::other("the monitor has closed the connection"))??;
            // The greeting and events are none of these.
            if line.starts_with(r#"{"return""#) {
                break;
            } else if line.starts_with(r#"{"error""#) {
                return Err(io::Error::other(line));
            }
        }
    }
    Ok(())
}
