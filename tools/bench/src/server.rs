//! A server to measure, as a process: started with its disks, connected to, ended by SIGTERM.
//!
//! blockplane takes the options of qemu-storage-daemon, so both get the same command line.

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

use crate::aio::Aio;
use crate::cpus::pin_raw;
use crate::error::{Error, Result};
use crate::storage::{Storage, literal};

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
    /// The driver with its options.
    blockdev: String,
    writable: bool,
    /// The type of its export, with options of that type.
    pub export: String,
}

impl Disk {
    /// A virtio disk. Files and devices are used through this engine, or one of the server's own choice.
    #[must_use]
    pub fn virtio(storage: &Storage, aio: Option<Aio>, num_queues: u16, writable: bool) -> Self {
        let mut blockdev = storage.options.clone();
        if storage.path.is_some() {
            blockdev.extend(aio.map(|aio| format!(",aio={aio}")));
            // Several servers use the same one in turn.
            blockdev.push_str(if writable {
                ",locking=off,discard=unmap"
            } else {
                ""
            });
        }
        Disk {
            blockdev,
            writable,
            export: format!("vhost-user-blk,num-queues={num_queues}"),
        }
    }
}

/// The threads that run a server's disks.
#[derive(Clone, Copy, Debug)]
pub struct Threads<'o> {
    /// How many. A peer may not have more than one per disk.
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
    /// [`Error::Io`] when it cannot be started.
    pub fn start(
        program: &Path,
        cpus: &[usize],
        iothreads: Threads<'_>,
        more: &[String],
        disks: &[Disk],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("bench-").tempdir();
        let folder = folder.map_err(Error::io("create a folder for sockets"))?;
        let mut command = Command::new(program);
        let Threads { count, options } = iothreads;
        let comma = if options.is_empty() { "" } else { "," };
        for index in 0..count {
            let object = format!("iothread,id=io{index}{comma}{options}");
            command.args(["--object", &object]);
        }
        let iothreads_of = |index: usize| match (count, disks.len()) {
            (2.., 1) => (0..count)
                .map(|index| format!(",iothread.{index}=io{index}"))
                .collect(),
            _ => format!(",iothread=io{}", index % usize::from(count)),
        };
        let on_off = |on| if on { "on" } else { "off" };
        for (index, disk) in disks.iter().enumerate() {
            let read_only = on_off(!disk.writable);
            command.arg("--blockdev").arg(format!(
                "driver={},node-name=d{index},read-only={read_only}",
                disk.blockdev
            ));
            command.arg("--export").arg(format!(
                "type={},id=e{index},node-name=d{index}{},writable={},addr.type=unix,addr.path={}",
                disk.export,
                iothreads_of(index),
                on_off(disk.writable),
                literal(&socket(folder.path(), index))
            ));
        }
        let log =
            tempfile::tempfile().map_err(Error::io("create a file for the server's output"))?;
        let output = || {
            log.try_clone()
                .map_err(Error::io("share a file with the server"))
        };
        command
            .args(more)
            .env("BLOCKPLANE_LOG", "debug")
            .stdin(Stdio::null())
            // Ctrl-C is for us; we end it.
            .process_group(0)
            .stdout(output()?)
            .stderr(output()?);
        let cpus = cpus.to_vec();
        // SAFETY: it makes system calls only.
        unsafe { command.pre_exec(move || pin_raw(&cpus)) };
        let shown = program.display();
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::Unsuitable(format!(
                "there is no program {shown}: name one with --server (blockplane) or --peer (qemu-storage-daemon)"
            )),
            _ => Error::io(format!("start {shown}"))(error),
        })?;
        Ok(Server {
            child,
            // A hundred disks are all alike.
            command: format!("{command:?}").chars().take(500).collect(),
            log,
            folder,
        })
    }

    /// Connects to the disk `index`, as soon as the server listens.
    ///
    /// # Errors
    /// [`Error::Server`] with its output when it ended or does not listen; [`Error::Io`].
    pub fn connect(&mut self, index: usize) -> Result<UnixStream> {
        let path = socket(self.folder.path(), index);
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() >= deadline => {
                    return Err(self.failed(&format!("does not listen: {error}")));
                }
                Err(_) => {}
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("ended by itself: {status}")));
            }
            sleep(LOOK_INTERVAL);
        }
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
        // An error says that it has ended already, which its status tells below.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(self.log()),
                Ok(None) if Instant::now() < deadline => sleep(LOOK_INTERVAL),
                status => {
                    return Err(self.failed(&format!("did not end well after SIGTERM: {status:?}")));
                }
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
                return self.failed(&format!("ended by itself: {status}; {error}"));
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

    fn failed(&self, what: &str) -> Error {
        Error::Server(format!("{what} ({})\n{}", self.command, self.log()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{index}.sock"))
}
