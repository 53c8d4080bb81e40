//! The vhost-user-blk server under test, as a process: started, listened to, ended by SIGTERM.
//!
//! It is blockplane, or qemu-storage-daemon to see whether a finding is ours or everybody's:
//! set `BLOCKPLANE_TEST_SERVER=qsd`.

mod command_line;
mod log;
mod options;
mod process;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};
use crate::monitor;
use command_line::{daemon_command, serve_command};
use log::ServerLog;
use process::ServerProcess;

pub(crate) use log::warnings;
pub use options::{Program, RbdImage, ServerOptions, blockplane, blockplane_bench};

/// To create the image and listen; and to end after SIGTERM. Only a hanging server takes it.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// What qemu-storage-daemon reports; it cannot be changed there.
const QSD_SERIAL: &str = "vhost_user_blk";

/// A running server; killed when dropped without [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    process: Mutex<ServerProcess>,
    program: Program,
    command: String,
    log: ServerLog,
    // The socket is in a short path: its length is limited to 107 bytes (unix(7)).
    folder: tempfile::TempDir,
    options: ServerOptions,
    is_qsd: bool,
}

impl Server {
    /// Starts the program and waits until it listens.
    ///
    /// # Errors
    /// [`Error::Server`] with its output if it ends or does not listen, [`Error::Io`].
    pub fn start(program: &Program, options: &ServerOptions) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("blockplane-guest-")
            .tempdir()
            .map_err(Error::io("create a folder for the socket"))?;
        let socket = folder.path().join("disk.sock");
        let log = ServerLog::new().map_err(Error::io("create a file for the server's output"))?;
        let mut command = command(program, options, &socket)?;
        let child = spawn(&mut command, &log)?;
        let is_qsd = matches!(program, Program::QemuStorageDaemon(_));
        let server = Self {
            process: Mutex::new(ServerProcess::Child(child)),
            program: program.clone(),
            command: format!("{command:?}"),
            log,
            folder,
            options: options.clone(),
            is_qsd,
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
        self.folder.path().join("disk.sock")
    }

    /// Its command line.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.command
    }

    /// The process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process().id()
    }

    /// The serial number that a guest sees.
    #[must_use]
    pub fn serial(&self) -> &str {
        if self.is_qsd {
            QSD_SERIAL
        } else {
            &self.options.serial
        }
    }

    /// The cache mode that a guest must see; nothing where the server is known to get it wrong.
    #[must_use]
    pub fn write_cache(&self) -> Option<&'static str> {
        // qemu-storage-daemon says "write through" of a disk that it writes back.
        (!self.is_qsd).then_some("write back")
    }

    /// Bytes that the image occupies on the host.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn allocated_bytes(&self) -> Result<u64> {
        let disk = &self.options.disk;
        let metadata = fs::metadata(disk).map_err(Error::io(format!("stat {}", disk.display())))?;
        // stat(2): always in units of 512.
        Ok(metadata.blocks() * 512)
    }

    /// Fails unless the server is still running.
    ///
    /// # Errors
    /// [`Error::Server`] with its output.
    pub fn check_running(&self) -> Result<()> {
        let ended = self.process().try_wait();
        match ended.map_err(Error::io("wait for the server"))? {
            None => Ok(()),
            Some(status) => Err(self.failed(format!("ended by itself: {status}"))),
        }
    }

    /// Kills it, without a chance to do anything, and starts it anew; again and again, as a supervisor does, while the
    /// kernel still carries out what it had asked for and so keeps the image locked.
    ///
    /// # Errors
    /// [`Error::Server`] if it had ended before, or does not listen again; [`Error::Io`].
    pub fn crash(&self) -> Result<()> {
        self.check_running()?;
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            let mut child = self.process();
            // One that has ended cannot be killed.
            let _ = child.kill();
            child.wait().map_err(Error::io("wait for the server"))?;
            let mut command = command(&self.program, &self.options, &self.socket())?;
            *child = ServerProcess::Child(spawn(&mut command, &self.log)?);
            drop(child);
            match self.wait_until_listening() {
                Err(_) if Instant::now() < deadline => {}
                listening => return listening,
            }
        }
    }

    /// Executes a command on its monitor; `arguments` are JSON.
    ///
    /// # Errors
    /// [`Error::Server`] with the error that the server replies.
    pub fn execute(&self, command: &str, arguments: &str) -> Result<()> {
        self.query(command, arguments).map(drop)
    }

    /// Executes a command on its monitor and returns the reply, in JSON.
    ///
    /// # Errors
    /// See [`Server::execute`].
    pub fn query(&self, command: &str, arguments: &str) -> Result<String> {
        monitor::query(&monitor_socket(&self.socket()), command, arguments)
            .map_err(|error| self.failed(format!("{command} {arguments}: {error}")))
    }

    /// Resizes the disk, over its monitor.
    ///
    /// # Errors
    /// See [`Server::execute`].
    pub fn resize(&self, size_bytes: u64) -> Result<()> {
        self.execute(
            "block_resize",
            &format!(r#"{{"node-name": "d", "size": {size_bytes}}}"#),
        )
    }

    /// Replaces the process by a live upgrade to the same program, and waits for its end. Needs a monitor.
    ///
    /// # Errors
    /// [`Error::Server`] if the upgrade is refused, [`Error::Io`].
    pub fn upgrade(&self) -> Result<()> {
        let before = self.id();
        let reply = self.query("upgrade", "{}")?;
        let number = reply.split(r#""pid":"#).nth(1).unwrap_or_default();
        let number = number.trim_start();
        let number = number.split(|char: char| !char.is_ascii_digit()).next();
        let id = number.and_then(|number| number.parse().ok());
        let id = id.ok_or_else(|| self.failed(format!("unexpected reply {reply}")))?;
        let successor =
            ServerProcess::successor(id).map_err(Error::io("open the new server's process"))?;
        let mut old = std::mem::replace(&mut *self.process(), successor);
        old.wait().map_err(Error::io("wait for the server"))?;
        match old.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            ended => Err(self.failed(format!("process {before} did not end well: {ended:?}"))),
        }
    }

    fn process(&self) -> MutexGuard<'_, ServerProcess> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it with SIGTERM and returns what it printed.
    ///
    /// # Errors
    /// [`Error::Server`] if it had ended before, does not end, or its status is not 0.
    pub fn stop(self) -> Result<String> {
        self.check_running()?;
        if let Some(pid) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)
                .map_err(|errno| Error::io("signal the server")(errno.into()))?;
        }
        let status = self.wait_until_ended()?;
        if status.success() {
            return Ok(self.log.all());
        }
        let how = status
            .signal()
            .map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
        Err(self.failed(format!("did not end well after SIGTERM: {how}")))
    }

    /// Looks at the kernel's list: connecting would make us the server's first client.
    fn wait_until_listening(&self) -> Result<()> {
        let socket = self.socket();
        let deadline = Instant::now() + SERVER_LIMIT;
        while Instant::now() < deadline {
            let sockets =
                fs::read_to_string("/proc/net/unix").map_err(Error::io("read /proc/net/unix"))?;
            if is_listening(&sockets, &socket.display().to_string()) {
                return Ok(());
            }
            self.check_running()?;
            thread::sleep(POLL_INTERVAL);
        }
        Err(self.failed(format!("does not listen after {SERVER_LIMIT:?}")))
    }

    fn wait_until_ended(&self) -> Result<ExitStatus> {
        let deadline = Instant::now() + SERVER_LIMIT;
        while Instant::now() < deadline {
            let ended = self.process().try_wait();
            if let Some(status) = ended.map_err(Error::io("wait for the server"))? {
                return Ok(status);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(self.failed(format!("has not ended {SERVER_LIMIT:?} after SIGTERM")))
    }

    pub(crate) fn failed(&self, what: String) -> Error {
        Error::Server {
            what,
            command: self.command.clone(),
            log: self.log.all(),
        }
    }

    /// The warnings and errors in its log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        warnings(&self.log.all())
    }

    /// What it has printed, and its processes before it.
    pub(crate) fn log(&self) -> &ServerLog {
        &self.log
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

/// The socket of a server's monitor, in the same folder as the socket of its disk.
fn monitor_socket(disk_socket: &Path) -> PathBuf {
    disk_socket.with_file_name("qmp.sock")
}

fn command(program: &Program, options: &ServerOptions, socket: &Path) -> Result<Command> {
    Ok(match program {
        Program::Blockplane(path) if !options.monitor => serve_command(path, options, socket),
        Program::Blockplane(path) => daemon_command(path, options, socket, Some(&options.serial))?,
        Program::QemuStorageDaemon(path) => daemon_command(path, options, socket, None)?,
    })
}

/// Starts a server whose output goes to `log`.
fn spawn(command: &mut Command, log: &ServerLog) -> Result<Child> {
    let output = || {
        log.writer()
            .map_err(Error::io("share a file with the server"))
    };
    command
        .stdin(Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        .spawn()
        .map_err(Error::io(format!("start {command:?}")))
}

/// Whether /proc/net/unix (proc_net(5)) has a listening socket at `path`.
/// Columns: Num RefCount Protocol Flags Type St Inode Path; flag 0x10000 is "accepts connections".
fn is_listening(sockets: &str, path: &str) -> bool {
    sockets.lines().any(|line| {
        let mut columns = line.split_whitespace();
        let flags = columns
            .nth(3)
            .and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & 0x1_0000 != 0) && columns.nth(3) == Some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_found_once_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let sockets = || fs::read_to_string("/proc/net/unix").unwrap();
        let shown = path.display().to_string();
        assert!(!is_listening(&sockets(), &shown));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(is_listening(&sockets(), &shown));
        drop(listener);
        assert!(!is_listening(&sockets(), &shown));
    }
}
