//! The vhost-user-blk server under test, as a process: started, listened to, ended by SIGTERM.
//!
//! It is blockplane, or qemu-storage-daemon to see whether a finding is ours or everybody's:
//! set `BLOCKPLANE_TEST_SERVER=qsd`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cache::target_dir;
use crate::command::{daemon_command, serve_command};
use crate::device::Device;
use crate::error::{Error, Result, find_program, run};
use crate::running::Running;
use crate::server_log::{ServerLog, warnings};

/// To create the image and listen; and to end after SIGTERM. Only a hanging server takes it.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// What qemu-storage-daemon reports; it cannot be changed there.
const QSD_SERIAL: &str = "vhost_user_blk";

/// Which server, and where its program is.
#[derive(Clone, Debug)]
pub enum Program {
    /// `blockplane serve`.
    Blockplane(PathBuf),
    /// qemu-storage-daemon, for comparison.
    QemuStorageDaemon(PathBuf),
}

/// The server that tests use: `BLOCKPLANE_BIN`, or a fresh build; qemu-storage-daemon if
/// `BLOCKPLANE_TEST_SERVER` is `qsd`.
///
/// # Errors
/// [`Error::CommandFailed`] if the build fails, [`Error::MissingProgram`].
pub fn blockplane() -> Result<Program> {
    if std::env::var_os("BLOCKPLANE_TEST_SERVER").is_some_and(|server| server == "qsd") {
        return find_program("qemu-storage-daemon", "qemu-system-common")
            .map(Program::QemuStorageDaemon);
    }
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(Program::Blockplane(PathBuf::from(path)));
    }
    built("blockplane", "blockplane").map(Program::Blockplane)
}

/// The measuring program that belongs to it: `BLOCKPLANE_BENCH_BIN`, or a fresh build.
///
/// # Errors
/// [`Error::CommandFailed`] if the build fails.
pub fn blockplane_bench() -> Result<PathBuf> {
    match std::env::var_os("BLOCKPLANE_BENCH_BIN") {
        Some(path) => Ok(PathBuf::from(path)),
        None => built("bench", "blockplane-bench"),
    }
}

/// Has cargo build a program of this package.
fn built(package: &str, program: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = target_dir();
    run(Command::new(cargo)
        .args(["build", "--quiet", "--package", package, "--bin", program])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR")))?;
    Ok(target.join("debug").join(program))
}

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The image; created if it does not exist.
    pub disk: PathBuf,
    /// Whether there is nothing behind the disk: what is written is lost, and reads bring what was in memory. Needs a
    /// monitor.
    pub null: bool,
    /// Its size.
    pub size_bytes: u64,
    /// Virtqueues; at least 1.
    pub num_queues: u16,
    /// At most 20 letters or digits.
    pub serial: String,
    /// Whether the guest may write.
    pub read_only: bool,
    /// Packed queues, offered by the server and asked for by the VMM. Not with qemu-storage-daemon,
    /// which has none.
    pub packed: bool,
    /// Whether it has a monitor, for [`Server::execute`].
    pub monitor: bool,
    /// Whether requests wait that find no space for the image, until its monitor is told that there is.
    pub waits_for_space: bool,
    /// How the image is locked, if not as servers do by default. Not with `blockplane serve`.
    pub locking: Option<&'static str>,
    /// Whether requests that fail wait, and there is a node `b` before the disk that lets them (`x-blkdebug-set`). Needs a monitor.
    pub faults: bool,
    /// How a guest sees the disk.
    pub device: Device,
}

impl ServerOptions {
    /// A writable disk with one queue.
    #[must_use]
    pub fn new(disk: &Path, size_bytes: u64) -> Self {
        Self {
            disk: disk.to_owned(),
            null: false,
            size_bytes,
            num_queues: 1,
            serial: "BP-GUEST-0001".to_owned(),
            read_only: false,
            packed: false,
            monitor: false,
            waits_for_space: false,
            locking: None,
            faults: false,
            device: Device::VirtioBlk,
        }
    }
}

/// A running server; killed when dropped without [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    child: Mutex<Running>,
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
            child: Mutex::new(Running::Ours(child)),
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
        self.child().id()
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
        let ended = self.child().try_wait();
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
            let mut child = self.child();
            // One that has ended cannot be killed.
            let _ = child.kill();
            child.wait().map_err(Error::io("wait for the server"))?;
            let mut command = command(&self.program, &self.options, &self.socket())?;
            *child = Running::Ours(spawn(&mut command, &self.log)?);
            drop(child);
            match self.wait_until_listening() {
                Err(_) if Instant::now() < deadline => {}
                listening => return listening,
            }
        }
    }

    pub(crate) fn child(&self) -> MutexGuard<'_, Running> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
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
            let ended = self.child().try_wait();
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
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
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
    fn a_socket_counts_once_it_listens() {
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
