//! A server to measure, as a process: started with its disks, connected to, ended by SIGTERM.
//!
//! blockplane takes the options of qemu-storage-daemon, so both get the same command line.

mod blockdev;

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use self::blockdev::blockdev;
use self::blockdev::literal;
use crate::cpus::Pinned;
use crate::error::{Error, Result};
use crate::storage::Backing;

/// To open its disks and listen; and to end after SIGTERM. Only a hanging server takes it.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
/// For a server that crashes to be gone.
const EXPLAIN_LIMIT: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Of the server's output in an error.
const MAX_LOG_BYTES: usize = 16 << 10;

/// A disk to serve. Several servers may have the same file: what guests write to it does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What is behind it.
    pub backing: Backing,
    /// Whether guests may write to it.
    pub writable: bool,
    /// The type of its export, with options of that type.
    pub export: String,
}

impl Disk {
    /// A virtio disk.
    #[must_use]
    pub fn virtio(backing: &Backing, num_queues: u16, writable: bool) -> Self {
        Disk {
            backing: backing.clone(),
            writable,
            export: format!("vhost-user-blk,num-queues={num_queues}"),
        }
    }
}

/// The threads that run a server's disks.
#[derive(Clone, Copy, Debug)]
pub struct Threads<'o> {
    /// How many; 0: the main thread runs them. A peer may not have more than one per disk.
    pub count: u16,
    /// Options of each: `KEY=VALUE,…` or nothing.
    pub options: &'o str,
}

/// A running server; killed when dropped without [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    child: Child,
    command: String,
    log: File,
    // Sockets are in a short path: its length is limited to 107 bytes (unix(7)).
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts `program`, on the processors `cpus` (none: any), with these iothreads, and with `more` words on the command line.
    /// The queues of an only disk are spread over all iothreads; of several disks each has one, in turn, since a peer may not
    /// have more. blockplane is to log what it has counted, for [`Server::stop`].
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started; [`Error::Unsuitable`] for processors that there are not.
    pub fn start(
        program: &Path,
        cpus: &[usize],
        iothreads: Threads<'_>,
        more: &[String],
        disks: &[Disk],
    ) -> Result<Self> {
        let folder = folder_of_sockets()?;
        let mut command = Command::new(program);
        let Threads { count, options } = iothreads;
        let comma = if options.is_empty() { "" } else { "," };
        command.env("BLOCKPLANE_LOG", "debug");
        for index in 0..count {
            command.args([
                "--object",
                &format!("iothread,id=io{index}{comma}{options}"),
            ]);
        }
        let iothreads_of = |index: usize| match (count, disks.len()) {
            (0, _) => String::new(),
            (2.., 1) => format!(",{}", all_iothreads(count)),
            _ => format!(",iothread=io{}", index % usize::from(count)),
        };
        for (index, disk) in disks.iter().enumerate() {
            command.arg("--blockdev").arg(blockdev(index, disk));
            command.arg("--export").arg(format!(
                "type={},id=e{index},node-name=d{index}{},writable={},addr.type=unix,addr.path={}",
                disk.export,
                iothreads_of(index),
                on_off(disk.writable),
                literal(socket(folder.path(), index).display())
            ));
        }
        command.args(more);
        Self::spawn(command, folder, cpus)
    }

    /// Starts `program` with the arguments that make it listen at a path, where [`Server::connect`] finds it as the disk 0.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started.
    pub fn start_listening_at(
        program: &Path,
        cpus: &[usize],
        arguments: impl FnOnce(&Path) -> Vec<String>,
    ) -> Result<Self> {
        let folder = folder_of_sockets()?;
        let mut command = Command::new(program);
        command.args(arguments(&socket(folder.path(), 0)));
        Self::spawn(command, folder, cpus)
    }

    fn spawn(mut command: Command, folder: tempfile::TempDir, cpus: &[usize]) -> Result<Self> {
        // What we start runs where we do at that moment.
        let _pinned = Pinned::to(cpus)?;
        let log =
            tempfile::tempfile().map_err(Error::io("create a file for the server's output"))?;
        let output = || {
            log.try_clone()
                .map_err(Error::io("share a file with the server"))
        };
        let child = command
            .stdin(Stdio::null())
            // Ctrl-C is for us; we end it.
            .process_group(0)
            .stdout(output()?)
            .stderr(output()?)
            .spawn()
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::Unsuitable(format!(
                    "there is no program {}: name one with --server (blockplane) or --peer \
                     (qemu-storage-daemon)",
                    Path::new(command.get_program()).display()
                )),
                _ => Error::io(format!(
                    "start {}",
                    Path::new(command.get_program()).display()
                ))(error),
            })?;
        Ok(Server {
            child,
            command: abbreviated(&format!("{command:?}")),
            log,
            folder,
        })
    }

    /// Connects to the disk `index`, as soon as the server listens.
    ///
    /// # Errors
    /// [`Error::Server`] with its output when it ended or does not listen; [`Error::Io`].
    pub fn connect(&mut self, index: usize) -> Result<UnixStream> {
        self.connect_to(&socket(self.folder.path(), index))
    }

    /// Connects to a socket of the server, as soon as it listens there.
    ///
    /// # Errors
    /// As for [`Server::connect`].
    pub fn connect_to(&mut self, path: &Path) -> Result<UnixStream> {
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) => {
                    return Err(Error::io(format!("connect to {}", path.display()))(error));
                }
            }
            let ended = self
                .child
                .try_wait()
                .map_err(Error::io("wait for the server"))?;
            if let Some(status) = ended {
                return Err(self.failed(format!("ended by itself: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("does not listen after {SERVER_LIMIT:?}")));
            }
            sleep(LOOK_INTERVAL);
        }
    }

    /// The socket of the disk 0.
    #[must_use]
    pub fn first_socket(&self) -> PathBuf {
        socket(self.folder.path(), 0)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGTERM and returns the end of what it logged.
    ///
    /// # Errors
    /// [`Error::Server`] when it does not end, or not with status 0.
    pub fn stop(mut self) -> Result<String> {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // An error says that it has ended already, which its status tells below.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            let ended = self
                .child
                .try_wait()
                .map_err(Error::io("wait for the server"))?;
            match ended {
                Some(status) if status.success() => return Ok(self.log()),
                Some(status) => {
                    return Err(self.failed(format!("did not end well after SIGTERM: {status}")));
                }
                None if Instant::now() >= deadline => {
                    return Err(
                        self.failed(format!("has not ended {SERVER_LIMIT:?} after SIGTERM"))
                    );
                }
                None => sleep(LOOK_INTERVAL),
            }
        }
    }

    /// The error to report for an `error` on our side of a connection: when the server has
    /// ended, that and what it said; else the error.
    #[must_use]
    pub fn explain(&mut self, error: Error) -> Error {
        // Its sockets are closed a moment before it can be waited for.
        let deadline = Instant::now() + EXPLAIN_LIMIT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return self.failed(format!("ended by itself: {status}; {error}"));
            }
            sleep(LOOK_INTERVAL);
        }
        error
    }

    /// The end of what it printed.
    fn log(&self) -> String {
        // By position: the server writes at the offset that it shares with us.
        let mut bytes = vec![0; MAX_LOG_BYTES];
        let len = self.log.metadata().map_or(0, |metadata| metadata.len());
        let start = len.saturating_sub(MAX_LOG_BYTES as u64);
        let read = self.log.read_at(&mut bytes, start).unwrap_or_default();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    fn failed(&self, what: String) -> Error {
        Error::Server {
            what,
            command: self.command.clone(),
            log: self.log(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The option of an export that runs on the iothreads `io0`, `io1` and so on.
#[must_use]
pub fn all_iothreads(count: u16) -> String {
    let members = (0..count).map(|index| format!("iothread.{index}=io{index}"));
    members.collect::<Vec<_>>().join(",")
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn folder_of_sockets() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("bench-")
        .tempdir()
        .map_err(Error::io("create a folder for sockets"))
}

fn socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{index}.sock"))
}

/// A command line that an error can show: a hundred disks are all alike.
fn abbreviated(command: &str) -> String {
    const MAX_CHARS: usize = 500;
    let mut short: String = command.chars().take(MAX_CHARS).collect();
    if short.len() < command.len() {
        short.push_str(" ...");
    }
    short
}
