//! The server under test: started as a process with one disk, ended with SIGTERM, exit status 0 or the test fails.
//!
//! `BLOCKPLANE_BIN` names the binary; without it the main workspace's debug build is taken.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use test_support::process::Process;

use crate::image::Image;

/// A server that is not started yet: one disk, given out on one socket.
#[derive(Debug, Clone)]
#[must_use]
pub struct Setup {
    nodes: Vec<String>,
    export: String,
    iothreads: usize,
}

impl Setup {
    /// A disk whose node has these options.
    pub fn new(node: &str) -> Self {
        Self {
            nodes: vec![format!("{node},node-name=d")],
            export: "type=vhost-user-blk,id=e,node-name=d,addr.type=unix".to_owned(),
            iothreads: 0,
        }
    }

    /// A disk on an image, with direct I/O.
    pub fn image(image: &Image) -> Self {
        Self::read_only(image).writable()
    }

    /// The same disk, which guests may not write.
    pub fn read_only(image: &Image) -> Self {
        Self::new(&on_host("file", &image.path(), true))
    }

    /// A disk in a file or on a block device.
    pub fn path(driver: &str, path: &Path, direct: bool) -> Self {
        Self::new(&on_host(driver, path, direct)).writable()
    }

    /// A disk in a file below a format node.
    pub fn raw_over_file(path: &Path) -> Self {
        let mut setup = Self::new("driver=raw,file=below,discard=unmap").writable();
        let below = format!("{},node-name=below", on_host("file", path, true));
        setup.nodes.insert(0, below);
        setup
    }

    /// Guests may write it.
    pub fn writable(self) -> Self {
        self.with("writable=on")
    }

    /// One more option of the export.
    pub fn with(mut self, option: &str) -> Self {
        self.export += &format!(",{option}");
        self
    }

    /// How many queues the disk has; 1 unless said otherwise.
    pub fn queues(self, queues: usize) -> Self {
        self.with(&format!("num-queues={queues}"))
    }

    /// Spreads the queues over that many iothreads; one of the server's own unless said otherwise.
    pub fn iothreads(mut self, iothreads: usize) -> Self {
        self.iothreads = iothreads;
        self
    }

    /// Starts it and waits until its socket accepts a connection. It has a monitor as well.
    ///
    /// # Panics
    /// When it ends instead, or does not get that far; with what it wrote.
    pub fn start(&self) -> Server {
        let folder = tempfile::tempdir().expect("a directory for the socket");
        let mut command = Command::new(program());
        command.current_dir(folder.path());
        command.args(["--chardev", "socket,id=c,path=monitor,server=on,wait=off"]);
        command.args(["--monitor", "chardev=c"]);
        let mut export = format!("{},addr.path=socket", self.export);
        for i in 0..self.iothreads {
            command.args(["--object", &format!("iothread,id=io{i}")]);
            export += &format!(",iothread.{i}=io{i}");
        }
        for node in &self.nodes {
            command.args(["--blockdev", node]);
        }
        command.args(["--export", &export]);
        let mut process = Process::spawn(command);
        process.wait_until_accepting(&folder.path().join("socket"));
        Server {
            process: Some(process),
            folder,
        }
    }
}

/// Options of a node on a file or block device. It opens read-write by default, also below a read-only export.
fn on_host(driver: &str, path: &Path, direct: bool) -> String {
    let cache = match direct {
        true => "cache.direct=on,aio=native",
        false => "cache.direct=off",
    };
    let path = path.display();
    format!("driver={driver},filename={path},{cache},discard=unmap")
}

fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug/blockplane");
    std::env::var_os("BLOCKPLANE_BIN").map_or(built, PathBuf::from)
}

/// A running server. Dropping it ends it and fails the test unless it ended with status 0.
#[derive(Debug)]
pub struct Server {
    process: Option<Process>,
    folder: TempDir,
}

impl Server {
    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Where its monitor listens.
    pub fn monitor(&self) -> PathBuf {
        self.folder.path().join("monitor")
    }

    /// Waits for the end after a command to its monitor, and expects status 0.
    ///
    /// # Panics
    /// When it does not end, or ends with another status.
    pub fn ended(mut self) {
        let ended = self.process.take().map(Process::ended);
        assert!(
            ended.as_ref().is_some_and(|ended| ended.code == Some(0)),
            "{ended:?}"
        );
    }

    /// Ends it now: SIGTERM, and exit status 0.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        if std::thread::panicking() {
            eprintln!("the server wrote:\n{}", process.stderr());
        } else {
            process.assert_running("until it is stopped");
            process.stop();
        }
    }
}
