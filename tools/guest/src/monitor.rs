//! One command to the monitor of a server or of QEMU, in QMP.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::server::Server;

/// Only a program that hangs takes it.
const LIMIT: Duration = Duration::from_secs(60);

/// A server's monitor is beside the socket of its disk.
pub(crate) fn beside(socket: &Path) -> PathBuf {
    socket.with_file_name("qmp.sock")
}

impl Server {
    /// Carries out a command of its monitor; `arguments` are JSON.
    ///
    /// # Errors
    /// [`Error::Server`] with what the server says.
    pub fn execute(&self, command: &str, arguments: &str) -> Result<()> {
        self.query(command, arguments).map(drop)
    }

    /// Carries out a command of its monitor, and returns the reply, in JSON.
    ///
    /// # Errors
    /// See [`Server::execute`].
    pub fn query(&self, command: &str, arguments: &str) -> Result<String> {
        ask(&beside(&self.socket()), command, arguments)
            .map_err(|error| self.failed(format!("{command} {arguments}: {error}")))
    }

    /// Gives the disk another size, over its monitor.
    ///
    /// # Errors
    /// See [`Server::execute`].
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        self.execute(
            "block_resize",
            &format!(r#"{{"node-name": "d", "size": {size_bytes}}}"#),
        )
    }
}

/// Carries out a command of QEMU's monitor at `socket`, see [`Boot::monitor`](crate::Boot::monitor);
/// `arguments` are JSON.
///
/// # Errors
/// [`Error::Io`] with what QEMU says.
pub fn execute(socket: &Path, command: &str, arguments: &str) -> Result<()> {
    ask(socket, command, arguments)
        .map(drop)
        .map_err(Error::io(format!("{command} {arguments} in QEMU")))
}

/// Sends a command and returns its reply.
pub(crate) fn ask(socket: &Path, command: &str, arguments: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
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
            // The greeting and events are none of these.
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
