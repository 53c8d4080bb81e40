//! blockplane under test, as a process: started, listened to, killed, upgraded, ended by SIGTERM.

mod command_line;
mod options;
mod process;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::monitor;
use command_line::{daemon_command, serve_command};
use process::ServerProcess;

pub use options::{Device, RbdImage, ServerOptions, blockplane};

/// To create the image and listen; and to end after SIGTERM. Only a hanging server takes it.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Limit of the output in an error, because a server may log each request.
const MAX_LOG_BYTES: u64 = 64 << 10;

/// A running server; killed when dropped without [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    process: Mutex<ServerProcess>,
    program: PathBuf,
    command: String,
    /// The output of the process and its successors.
    log: File,
    // The socket is in a short path: its length is limited to 107 bytes (unix(7)).
    folder: tempfile::TempDir,
    options: ServerOptions,
}

impl Server {
    /// Starts the program and waits until it listens.
    ///
    /// # Errors
    /// With its output, if it ends or does not listen.
    pub fn start(program: &Path, options: &ServerOptions) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("blockplane-guest-")
            .tempdir()
            .map_err(Error::io("create a folder for the socket"))?;
        let log = tempfile::tempfile().map_err(Error::io("create a file for a server's output"))?;
        let mut command = command(program, options, folder.path())?;
        let server = Self {
            process: Mutex::new(ServerProcess::Child(spawn(&mut command, &log)?)),
            program: program.to_owned(),
            command: format!("{command:?}"),
            log,
            folder,
            options: options.clone(),
        };
        server.wait_until_listening()?;
        Ok(server)
    }

    /// What it was started with.
    #[must_use]
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        disk_socket(self.folder.path())
    }

    /// Its command line.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Bytes that the image occupies on the host.
    ///
    /// # Errors
    /// If there is none.
    pub fn allocated_bytes(&self) -> Result<u64> {
        let disk = &self.options.disk;
        let metadata = fs::metadata(disk).map_err(Error::io(format!("stat {}", disk.display())))?;
        // stat(2): always in units of 512.
        Ok(metadata.blocks() * 512)
    }

    /// Fails unless the server is still running.
    fn check_running(&self) -> Result<()> {
        let ended = self.process().try_wait();
        match ended.map_err(Error::io("wait for the server"))? {
            None => Ok(()),
            Some(status) => Err(self.failed(&format!("ended by itself: {status}"))),
        }
    }

    /// Kills it, without a chance to do anything, and starts it anew; again and again, as a supervisor does, while the
    /// kernel still carries out what it had asked for and so keeps the image locked.
    ///
    /// # Errors
    /// If it had ended before, or does not listen again.
    pub fn crash(&self) -> Result<()> {
        self.check_running()?;
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            let mut child = self.process();
            // One that has ended cannot be killed.
            let _ = child.kill();
            child.wait().map_err(Error::io("wait for the server"))?;
            let mut command = command(&self.program, &self.options, self.folder.path())?;
            *child = ServerProcess::Child(spawn(&mut command, &self.log)?);
            drop(child);
            match self.wait_until_listening() {
                Err(_) if Instant::now() < deadline => {}
                listening => return listening,
            }
        }
    }

    /// Executes a command on its monitor and returns what that returns.
    ///
    /// # Errors
    /// With the error that the server replies.
    pub fn query(&self, command: &str, arguments: &Value) -> Result<Value> {
        monitor::query(&monitor_socket(&self.socket()), command, arguments)
            .map_err(|error| self.failed(&error.to_string()))
    }

    /// Holds requests of the other disk from now on, or releases those that are held. Needs that disk.
    ///
    /// # Errors
    /// With the error that the server replies.
    pub fn hold(&self, holds: bool) -> Result<()> {
        let rules = match holds {
            true => json!([{"action": "hang"}]),
            false => json!([]),
        };
        let arguments = json!({"node-name": "held", "inject-error": rules});
        self.query("x-blkdebug-set", &arguments).map(drop)
    }

    /// Replaces the process by a live upgrade to the same program, and waits for its end. Needs a monitor.
    ///
    /// # Errors
    /// If the upgrade is refused.
    pub fn upgrade(&self) -> Result<()> {
        let reply = self.query("upgrade", &json!({}))?;
        let id = reply["pid"].as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| self.failed(&format!("unexpected reply {reply}")))?;
        let successor =
            ServerProcess::successor(id).map_err(Error::io("open the new server's process"))?;
        let mut old = std::mem::replace(&mut *self.process(), successor);
        old.wait().map_err(Error::io("wait for the server"))?;
        match old.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            ended => Err(self.failed(&format!("the old process did not end well: {ended:?}"))),
        }
    }

    fn process(&self) -> MutexGuard<'_, ServerProcess> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// If it had ended before, does not end, or its status is not 0.
    pub fn stop(self) -> Result<()> {
        self.check_running()?;
        let id = self.process().id();
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)
                .map_err(|errno| Error::io("signal the server")(errno.into()))?;
        }
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            let ended = self.process().try_wait();
            match ended.map_err(Error::io("wait for the server"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let signal = status.signal();
                    return Err(
                        self.failed(&format!("ended badly after SIGTERM: {status} {signal:?}"))
                    );
                }
                None if Instant::now() > deadline => {
                    return Err(
                        self.failed(&format!("has not ended {SERVER_LIMIT:?} after SIGTERM"))
                    );
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Looks at the kernel's list (proc_net(5)): connecting would make us the server's first client.
    /// Columns: Num RefCount Protocol Flags Type St Inode Path; flag 0x10000 is "accepts connections".
    fn wait_until_listening(&self) -> Result<()> {
        let socket = self.socket().display().to_string();
        let deadline = Instant::now() + SERVER_LIMIT;
        while Instant::now() < deadline {
            let sockets =
                fs::read_to_string("/proc/net/unix").map_err(Error::io("read /proc/net/unix"))?;
            let mut sockets = sockets.lines().map(|line| line.split_whitespace());
            if sockets.any(|mut columns| {
                columns.nth(3) == Some("00010000") && columns.nth(3) == Some(&*socket)
            }) {
                return Ok(());
            }
            self.check_running()?;
            thread::sleep(POLL_INTERVAL);
        }
        Err(self.failed(&format!("does not listen after {SERVER_LIMIT:?}")))
    }

    fn failed(&self, what: &str) -> Error {
        Error::new(format!(
            "the server {what} ({})\n{}",
            self.command,
            self.log()
        ))
    }

    /// The warnings and errors in its log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let log = self.log();
        let warnings = log.lines().filter(|line| {
            // The level is the word behind the time.
            let level = line.split_whitespace().nth(1);
            matches!(level, Some("WARN" | "ERROR")) || line.starts_with("blockplane: error")
        });
        warnings.map(str::to_owned).collect()
    }

    /// What it has printed, and its processes before it; of much the end.
    pub(crate) fn log(&self) -> String {
        let end = self.log.metadata().map_or(0, |metadata| metadata.len());
        let len = end.min(MAX_LOG_BYTES);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        // By position: the server writes at the offset that it shares with us. What cannot be read is left out.
        let read = self.log.read_at(&mut bytes, end - len).unwrap_or_default();
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already, which is what we want.
        let mut child = self.process();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn disk_socket(folder: &Path) -> PathBuf {
    folder.join("disk.sock")
}

/// The socket of a server's monitor, in the same folder as the socket of its disk.
fn monitor_socket(disk_socket: &Path) -> PathBuf {
    disk_socket.with_file_name("qmp.sock")
}

fn command(program: &Path, options: &ServerOptions, folder: &Path) -> Result<Command> {
    let socket = disk_socket(folder);
    match options.monitor {
        false => Ok(serve_command(program, options, &socket)),
        true => daemon_command(program, options, &socket),
    }
}

/// Starts a server whose output goes to `log`.
fn spawn(command: &mut Command, log: &File) -> Result<Child> {
    let output = || {
        log.try_clone()
            .map_err(Error::io("share a file with the server"))
    };
    command
        .stdin(Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        .spawn()
        .map_err(Error::io(format!("start {command:?}")))
}
