//! NBD servers of others: nbdkit and qemu-nbd, each on a socket in a folder of the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::process::{Folder, Process, await_killed, words};
use crate::report;

/// A server, which can be killed and started again.
#[derive(Debug)]
pub struct NbdServer {
    /// The program with its arguments.
    line: String,
    socket: PathBuf,
    process: Option<Process>,
}

impl NbdServer {
    /// nbdkit with these filters and this plugin; `None`, with a report, if it is not installed.
    pub fn nbdkit(folder: &Folder, plugin: &str) -> Option<Self> {
        let socket = folder.join("nbd.sock");
        let line = format!("nbdkit --foreground --unix {} {plugin}", socket.display());
        Self::start_if_installed("nbdkit", line, socket)
    }

    /// qemu-nbd for a raw image, with these options.
    pub fn qemu_nbd(folder: &Folder, options: &str, image: &Path) -> Option<Self> {
        let socket = folder.join("nbd.sock");
        let (path, image) = (socket.display(), image.display());
        let line = format!("qemu-nbd --persistent --format raw --socket {path} {options} {image}");
        Self::start_if_installed("qemu-nbd", line, socket)
    }

    fn start_if_installed(program: &str, line: String, socket: PathBuf) -> Option<Self> {
        if !report::installed(program) {
            return None;
        }
        let mut server = NbdServer {
            line,
            socket,
            process: None,
        };
        server.start();
        Some(server)
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts it, and waits until it listens.
    pub fn start(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let mut words = words(&self.line).into_iter();
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        let mut process = Process::spawn(command);
        // Without a connection: some servers count them.
        let socket = self.socket.clone();
        process.wait_until("the server listens", || is_listening(&socket));
        self.process = Some(process);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let process = self.process.take().unwrap();
        let pid = process.pid();
        process.signal(Signal::KILL);
        await_killed(pid);
    }

    /// Has it answer nothing until [`resume`](Self::resume).
    pub fn pause(&self) {
        self.process.as_ref().unwrap().pause();
    }

    /// Has it go on after a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.as_ref().unwrap().signal(Signal::CONT);
    }
}

/// Whether a Unix socket listens, by the kernel's list.
fn is_listening(socket: &Path) -> bool {
    let list = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = socket.to_str().unwrap();
    // Flags 00010000: it listens.
    let mut lines = list.lines().filter(|line| line.ends_with(path));
    lines.any(|line| line.split_whitespace().nth(3) == Some("00010000"))
}
