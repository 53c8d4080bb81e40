//! The daemon as a process, and what can be seen of it from outside: its log, its descriptors, its
//! mappings of guest memory, its end.

use std::fs;
use std::path::PathBuf;

use test_support::deadline::Deadline;
use test_support::process::{Folder, Process};
use test_support::threads::status_field;
use test_support::undisturbed_guest::UndisturbedGuest;

/// Bytes of each disk.
pub const DISK_BYTES: u64 = 64 << 20;

/// Queues of each export.
pub const QUEUES: u32 = 2;

/// Exports, all on one iothread: what one of them does to it, the others feel.
pub const HOSTILE: &str = "hostile";
/// A read-only disk with blocks of 4 KiB.
pub const READ_ONLY: &str = "read-only";
/// A disk that takes [`SLOW_NS`] for each request.
pub const SLOW: &str = "slow";
/// A virtio SCSI controller with one unit.
pub const SCSI: &str = "scsi";
/// The disk of a guest that does nothing wrong.
const QUIET: &str = "quiet";

/// Latency of the slow disk: long enough to do something while a request is in flight.
const SLOW_NS: u64 = 300_000_000;

/// A running daemon. Dropping it kills it: a test ends it with [`Daemon::stop`].
pub struct Daemon {
    process: Process,
    folder: Folder,
}

/// What a connection must not leave behind.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    /// What is open, by the kernel's names, sorted.
    open: Vec<String>,
    /// Mappings of memory files.
    mapped: usize,
}

impl Daemon {
    /// Starts the daemon with an export for each kind of row.
    pub fn start() -> Self {
        let folder = Folder::new();
        let mut command = folder.command(["--object", "iothread,id=io", "--pidfile", "pid"]);
        let blk = format!("vhost-user-blk,num-queues={QUEUES}");
        for (name, driver, export) in [
            (HOSTILE, "file", format!("{blk},writable=on,packed=on")),
            (QUIET, "file", format!("{blk},writable=on")),
            (READ_ONLY, "file", format!("{blk},logical-block-size=4096")),
            (SLOW, "null-co", format!("{blk},writable=on,packed=on")),
            (
                SCSI,
                "null-co",
                "vhost-user-scsi,num-queues=1,writable=on".to_owned(),
            ),
        ] {
            let latency_ns = if name == SLOW { SLOW_NS } else { 0 };
            let node = if driver == "file" {
                folder.image(name, DISK_BYTES);
                format!("file,node-name={name},filename={name}")
            } else {
                format!("null-co,node-name={name},size={DISK_BYTES},latency-ns={latency_ns}")
            };
            let address = format!("addr.type=unix,addr.path={name}.sock");
            let export = format!("{export},id={name},node-name={name},iothread=io,{address}");
            command.args(["--blockdev", &node, "--export", &export]);
        }
        let mut process = Process::spawn(command);
        // It is there when all the rest is: from then on what is open is open for ever, or is a
        // front-end's.
        process.wait_until("is up", || folder.has("pid"));
        Daemon { process, folder }
    }

    pub fn socket(&self, export: &str) -> PathBuf {
        self.folder.join(&format!("{export}.sock"))
    }

    /// Connects a guest to the quiet export.
    pub fn start_undisturbed_guest(&self) -> UndisturbedGuest {
        UndisturbedGuest::start(&self.socket(QUIET), QUEUES)
    }

    /// What it logged so far.
    pub fn log(&self) -> String {
        self.process.stderr()
    }

    /// What it holds while only a well-behaved guest is connected, and for as long as it lives: what
    /// is there twice, with some of that guest's requests between. A thread that begins opens files for a
    /// moment (the C library wants to know how many processors there are), and the first request of a disk
    /// may begin one.
    pub fn footprint_beside(&self, guest: &UndisturbedGuest) -> Footprint {
        let mut seen = self.footprint();
        let deadline = Deadline::default();
        loop {
            guest.goes_on("its start");
            let now = self.footprint();
            if now == seen {
                return now;
            }
            seen = now;
            deadline.check("what it holds stays the same");
        }
    }

    fn proc(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.process.pid()).into()
    }

    /// The daemon's open descriptors and its mappings of shared memory.
    fn footprint(&self) -> Footprint {
        let maps = fs::read_to_string(self.proc("maps")).unwrap();
        let mut open: Vec<_> = fs::read_dir(self.proc("fd"))
            .unwrap()
            // One that is closed meanwhile has no name any more.
            .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
            .map(|file| file.display().to_string())
            .collect();
        open.sort();
        let mapped = maps.matches("/memfd:").count();
        Footprint { open, mapped }
    }

    /// Its address space, in KiB.
    pub fn address_space_kib(&self) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let size = status_field(&status, "VmSize");
        size.trim_end_matches(" kB").parse().unwrap()
    }

    /// Waits until it holds what it held then, and no more.
    pub fn holds(&mut self, before: &Footprint, what: &str) {
        let deadline = Deadline::default();
        loop {
            let now = self.footprint();
            if now == *before {
                return;
            }
            self.assert_running(what);
            deadline.pause(format_args!("{what}: {now:?} is {before:?} again"));
        }
    }

    pub fn assert_running(&mut self, what: &str) {
        self.process.assert_running(what);
    }

    /// Ends it with SIGTERM, also with connected front-ends, and expects status 0.
    #[track_caller]
    pub fn stop(self) {
        self.process.stop();
    }
}
