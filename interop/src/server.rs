//! The server under test: started as a process, ended with SIGTERM, exit status 0 or the test
//! fails.
//!
//! `BLOCKPLANE_BIN` names the binary; without it the main workspace's debug build is made and
//! taken. `BLOCKPLANE_TEST_SERVER=qsd` puts qemu-storage-daemon in its place, with the same
//! options, to see whether a failure is ours or the client's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cluster;
use crate::image::Image;

/// A server that does not start or stop within this time is taken for stuck. It is far above
/// what either needs, so that a busy machine does not fail a test.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// Which program is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Ours.
    Blockplane,
    /// The one whose options ours takes.
    QemuStorageDaemon,
}

impl Kind {
    /// What `BLOCKPLANE_TEST_SERVER` asks for.
    ///
    /// # Panics
    /// When it names a server that is neither.
    pub fn under_test() -> Self {
        match std::env::var("BLOCKPLANE_TEST_SERVER").as_deref() {
            Err(_) | Ok("" | "blockplane") => Self::Blockplane,
            Ok("qsd") => Self::QemuStorageDaemon,
            Ok(other) => panic!("BLOCKPLANE_TEST_SERVER={other}: use 'blockplane' or 'qsd'"),
        }
    }

    /// The program's path or name.
    pub fn program(self) -> PathBuf {
        static BLOCKPLANE: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Self::QemuStorageDaemon => PathBuf::from("qemu-storage-daemon"),
            Self::Blockplane => BLOCKPLANE
                .get_or_init(|| {
                    std::env::var_os("BLOCKPLANE_BIN").map_or_else(build_blockplane, PathBuf::from)
                })
                .clone(),
        }
    }
}

fn build_blockplane() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = workspace.join("target");
    let status = Command::new("cargo")
        .args(["build", "--package", "blockplane", "--target-dir"])
        .arg(&target)
        .current_dir(&workspace)
        .env_remove("CARGO_TARGET_DIR")
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the main workspace's blockplane builds");
    target.join("debug/blockplane")
}

/// The command line with which blockplane is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandLine {
    /// `blockplane serve DISK`; qemu-storage-daemon gets the other one.
    Serve,
    /// qemu-storage-daemon's options.
    DropIn,
}

#[derive(Debug, Clone)]
enum Storage {
    File(PathBuf),
    RawOverFile(PathBuf),
    HostDevice(PathBuf),
    Rbd(String),
    Null { bytes: u64 },
}

/// A server that is not started yet: one disk, given out on one socket.
#[derive(Debug, Clone)]
#[must_use]
pub struct Setup {
    face: CommandLine,
    storage: Storage,
    size_bytes: Option<u64>,
    queues: usize,
    iothreads: usize,
    direct: bool,
    writable: bool,
    logical_block_bytes: Option<u32>,
    packed: bool,
    monitored: bool,
}

impl Setup {
    fn new(storage: Storage) -> Self {
        Self {
            face: CommandLine::DropIn,
            storage,
            size_bytes: None,
            queues: 1,
            iothreads: 0,
            direct: true,
            writable: true,
            logical_block_bytes: None,
            packed: false,
            monitored: false,
        }
    }

    /// A disk on an image, of either kind.
    pub fn image(image: &Image) -> Self {
        Self::new(match image.rbd_name() {
            Some(name) => Storage::Rbd(name.to_owned()),
            None => Storage::File(image.path().to_owned()),
        })
    }

    /// A disk in a file (`driver=file`).
    pub fn file(path: &Path) -> Self {
        Self::new(Storage::File(path.to_owned()))
    }

    /// The same below a format node (`driver=raw`).
    pub fn raw_over_file(path: &Path) -> Self {
        Self::new(Storage::RawOverFile(path.to_owned()))
    }

    /// A disk on a block device (`driver=host_device`).
    pub fn host_device(path: &Path) -> Self {
        Self::new(Storage::HostDevice(path.to_owned()))
    }

    /// A disk that forgets (`driver=null-co`, reading zeroes).
    pub fn null(bytes: u64) -> Self {
        Self::new(Storage::Null { bytes })
    }

    /// Uses `blockplane serve`, which makes the file of `bytes` bytes if it is not there.
    pub fn serve_with_size(mut self, bytes: u64) -> Self {
        self.face = CommandLine::Serve;
        self.size_bytes = Some(bytes);
        self
    }

    /// How many queues the disk has; 1 unless said otherwise.
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = queues;
        self
    }

    /// Spreads the queues over that many iothreads; one of the server's own unless said otherwise.
    pub fn iothreads(mut self, iothreads: usize) -> Self {
        self.iothreads = iothreads;
        self
    }

    /// Through the page cache instead of direct I/O.
    pub fn buffered(mut self) -> Self {
        self.direct = false;
        self
    }

    /// Guests may not write.
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// The logical block size that guests see.
    pub fn logical_block_bytes(mut self, bytes: u32) -> Self {
        self.logical_block_bytes = Some(bytes);
        self
    }

    /// Packed queues are offered, which only blockplane can.
    pub fn packed(mut self) -> Self {
        self.packed = true;
        self
    }

    /// It has a monitor as well, in the form of options that both programs take.
    pub fn monitored(mut self) -> Self {
        self.monitored = true;
        self
    }

    fn blockdev(&self) -> String {
        let on_host = |driver: &str, node: &str, path: &Path| {
            let cache = if self.direct {
                "cache.direct=on,aio=native"
            } else {
                "cache.direct=off"
            };
            let path = path.to_str().expect("test paths are UTF-8");
            // the field opens read-write by default, also below a read-only export
            format!("driver={driver},node-name={node},filename={path},{cache},discard=unmap")
        };
        match &self.storage {
            Storage::File(path) => on_host("file", "d", path),
            Storage::RawOverFile(path) => on_host("file", "below", path),
            Storage::HostDevice(path) => on_host("host_device", "d", path),
            Storage::Rbd(name) => {
                let conf = cluster::conf();
                let conf = conf.display();
                // Without a page cache there is nothing that buffers.
                format!("driver=rbd,node-name=d,pool=rbd,image={name},conf={conf},discard=unmap")
            }
            Storage::Null { bytes } => {
                format!("driver=null-co,node-name=d,size={bytes},read-zeroes=on")
            }
        }
    }

    fn drop_in_arguments(&self, socket: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        if self.monitored {
            let path = monitor(socket);
            let path = path.to_str().expect("test paths are UTF-8");
            arguments.push("--chardev".into());
            arguments.push(format!("socket,id=c,path={path},server=on,wait=off").into());
            arguments.extend(["--monitor".into(), "chardev=c".into()]);
        }
        for i in 0..self.iothreads {
            arguments.push("--object".into());
            arguments.push(format!("iothread,id=io{i}").into());
        }
        arguments.push("--blockdev".into());
        arguments.push(self.blockdev().into());
        if matches!(self.storage, Storage::RawOverFile(_)) {
            arguments.push("--blockdev".into());
            arguments.push("driver=raw,node-name=d,file=below,discard=unmap".into());
        }
        let mut export = format!(
            "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={},num-queues={}",
            socket.to_str().expect("test paths are UTF-8"),
            self.queues
        );
        if self.writable {
            export += ",writable=on";
        }
        if let Some(bytes) = self.logical_block_bytes {
            export += &format!(",logical-block-size={bytes}");
        }
        if self.packed {
            export += ",packed=on";
        }
        for i in 0..self.iothreads {
            export += &format!(",iothread.{i}=io{i}");
        }
        arguments.push("--export".into());
        arguments.push(export.into());
        arguments
    }

    fn serve_arguments(&self, socket: &Path) -> Vec<OsString> {
        let Storage::File(path) = &self.storage else {
            panic!("the suite uses `serve` with files only");
        };
        let mut arguments: Vec<OsString> = vec!["serve".into(), path.into()];
        let mut option = |name: &str, value: String| {
            arguments.push(name.into());
            arguments.push(value.into());
        };
        if let Some(bytes) = self.size_bytes {
            assert_eq!(bytes % (1 << 20), 0, "the suite asks for whole MiB");
            option("--size", format!("{}M", bytes >> 20));
        }
        option("--num-queues", self.queues.to_string());
        option("--iothreads", self.iothreads.max(1).to_string());
        if let Some(bytes) = self.logical_block_bytes {
            option("--logical-block-size", bytes.to_string());
        }
        arguments.push("--socket".into());
        arguments.push(socket.into());
        if !self.writable {
            arguments.push("--read-only".into());
        }
        arguments
    }

    /// Starts it and waits until its socket accepts a connection.
    ///
    /// # Panics
    /// When it ends instead, or does not get that far; with what it wrote.
    pub fn start(self) -> Server {
        let kind = Kind::under_test();
        let dir = tempfile::Builder::new()
            .prefix("interop-server-")
            .tempdir()
            .expect("a directory for the socket");
        let socket = dir.path().join("socket");
        let arguments = match (kind, self.face) {
            (Kind::Blockplane, CommandLine::Serve) => self.serve_arguments(&socket),
            _ => {
                if let (Storage::File(path), Some(bytes)) = (&self.storage, self.size_bytes) {
                    let mut options = File::options();
                    let options = options.write(true).create(true).truncate(false);
                    let file = options.open(path).expect("the image can be made");
                    file.set_len(bytes).expect("the image can be sized");
                }
                self.drop_in_arguments(&socket)
            }
        };
        let output = File::create(dir.path().join("output")).expect("a file for its output");
        let child = Command::new(kind.program())
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", kind.program().display()));
        let mut server = Server {
            child,
            ended: None,
            socket,
            dir,
        };
        server.wait_until_it_accepts(&arguments);
        server
    }
}

/// Where the monitor of a server listens that gives out its disk on `socket`.
fn monitor(socket: &Path) -> PathBuf {
    socket.with_file_name("monitor")
}

/// A running server. Dropping it ends it and fails the test unless it ended with status 0.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ended: Option<ExitStatus>,
    socket: PathBuf,
    dir: TempDir,
}

impl Server {
    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Where its monitor listens.
    pub fn monitor(&self) -> PathBuf {
        monitor(&self.socket)
    }

    /// Waits for the end after a command to its monitor, and expects status 0.
    ///
    /// # Panics
    /// When it does not end, or ends with another status.
    pub fn ended(mut self) {
        let status = self.wait_for_end("its monitor");
        assert!(status.success(), "{status}:\n{}", self.output());
    }

    /// Ends it now: SIGTERM, and exit status 0.
    ///
    /// # Panics
    /// When it had already ended, does not end, or ends with another status.
    pub fn stop(mut self) {
        self.terminate();
    }

    fn wait_until_it_accepts(&mut self, arguments: &[OsString]) {
        let started = Instant::now();
        while UnixStream::connect(&self.socket).is_err() {
            self.ended = self.child.try_wait().expect("the server can be waited for");
            if let Some(status) = self.ended {
                panic!("{arguments:?}: it ended with {status}:\n{}", self.output());
            }
            assert!(
                started.elapsed() < STUCK_AFTER,
                "{arguments:?}: no socket:\n{}",
                self.output()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn terminate(&mut self) {
        if let Some(status) = self.child.try_wait().expect("the server can be waited for") {
            self.ended = Some(status);
            panic!("it ended by itself, {status}:\n{}", self.output());
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), Signal::Term).expect("it can be signalled");
        let status = self.wait_for_end("SIGTERM");
        assert!(status.success(), "SIGTERM: {status}:\n{}", self.output());
    }

    fn wait_for_end(&mut self, stopped_by: &str) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("the server can be waited for") {
                self.ended = Some(status);
                return status;
            }
            if start.elapsed() > STUCK_AFTER {
                self.kill();
                panic!("{stopped_by} did not end it:\n{}", self.output());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self) {
        // It fails only for a process that has already been waited for.
        let _ = self.child.kill();
        self.ended = self.child.wait().ok();
    }

    fn output(&self) -> String {
        fs::read_to_string(self.dir.path().join("output")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking() {
            if self.ended.is_none() {
                self.terminate();
            }
            return;
        }
        if self.ended.is_none() {
            let early = self.child.try_wait().ok().flatten();
            let state = early.map_or("still running".to_owned(), |s| format!("ended, {s}"));
            eprintln!("the server ({state}) wrote:\n{}", self.output());
            self.kill();
        }
    }
}
