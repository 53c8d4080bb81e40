//! Commands of a monitor do not disturb a guest on the same iothread.

use std::fs::DirEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::process::Pid;
use test_support::deadline::Deadline;
use test_support::threads::status_field;

use crate::process::Folder;
use crate::request_driver::{IN, OUT, RequestDriver};
use crate::start_with_images;

/// Blocks that the neighbour writes and reads.
const BLOCKS: u64 = 64;

pub struct UndisturbedGuest {
    verified: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl UndisturbedGuest {
    /// Writes blocks and reads them again, all the time.
    pub fn start(folder: &Folder) -> Self {
        let mut guest = RequestDriver::connect(&folder.join("neighbour.sock"), 1);
        let (verified, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, end) = (verified.clone(), stop.clone());
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let done = count.load(Ordering::Relaxed);
                let byte = u8::try_from(done % 251).unwrap();
                guest.request(0, OUT, done % BLOCKS, byte);
                guest.request(0, IN, done % BLOCKS, 0);
                assert!(guest.data(0, 0).iter().all(|found| *found == byte));
                count.store(done + 1, Ordering::Relaxed);
            }
        });
        UndisturbedGuest {
            verified,
            stop,
            thread,
        }
    }

    /// Waits until some more was right.
    #[track_caller]
    pub fn goes_on(&self) {
        let goal = self.verified.load(Ordering::Relaxed) + 3;
        let deadline = Deadline::default();
        while self.verified.load(Ordering::Relaxed) < goal {
            assert!(!self.thread.is_finished(), "the neighbour was disturbed");
            deadline.check("more requests of the neighbour");
            thread::yield_now();
        }
    }

    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

pub const LINE: &str = "--object iothread,id=a \
    --blockdev file,node-name=n,filename=disk \
    --export vhost-user-blk,id=neighbour,node-name=n,addr.type=unix,addr.path=neighbour.sock,\
writable=on,iothread=a";

/// Memory that a program has, without what is a file's or shared.
pub fn memory_kib(pid: Pid) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib = status_field(&status, "RssAnon");
    kib.trim_end_matches(" kB").parse().unwrap()
}

/// Descriptors, threads and shared mappings of the program.
fn footprint(pid: Pid) -> [usize; 3] {
    let entries = |of: &str| std::fs::read_dir(format!("/proc/{pid}/{of}")).unwrap();
    let name =
        |task: &DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    // Those of a pool, and of the kernel's for a ring, come and go as they are needed.
    let is_worker = |name: &str| name.starts_with("worker") || name.starts_with("iou-");
    let threads = entries("task").filter(|task| !is_worker(&name(task.as_ref().unwrap())));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    // Guest memory and rings; the heap grows as it likes.
    let shared = maps.lines().filter(|line| line.contains("rw-s"));
    [entries("fd").count(), threads.count(), shared.count()]
}

/// Exports that come and go.
const CYCLES: usize = 1000;
/// What the heap may grow by meanwhile; a leak of a kilobyte a time would be more.
const MORE_KIB: usize = 800;

#[test]
fn thousand_exports_added_and_removed_leave_nothing() {
    let (folder, mut program, mut client) = start_with_images(&["disk", "other"], LINE);
    let pid = program.pid();
    let neighbour = UndisturbedGuest::start(&folder);
    neighbour.goes_on();
    let mut before = None;
    for cycle in 0..CYCLES {
        client.execute(
            "blockdev-add driver=file node-name=o filename=other
             block-export-add type=vhost-user-blk id=e node-name=o writable=true iothread=a num-queues=2 addr.type=unix addr.path=e.sock",
        );
        let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
        guest.request(0, OUT, 1, 7);
        guest.request(1, IN, 1, 0);
        // In flight when its export goes, every other time.
        if cycle % 2 == 0 {
            guest.ask(0, 0, IN, 2, 0);
        }
        client.execute("block-export-del id=e mode=hard");
        client.event("BLOCK_EXPORT_DELETED", "e");
        drop(guest);
        client.execute("blockdev-del node-name=o");
        if cycle % 10 == 0 {
            neighbour.goes_on();
        }
        if cycle == CYCLES / 10 {
            // What is made on demand and kept is there now.
            before = Some((footprint(pid), memory_kib(pid)));
        }
    }
    let (before, memory) = before.unwrap();
    // The last thread that waited for an export may be about to end.
    program.wait_until(&format!("back at {before:?}"), || {
        let after = footprint(pid);
        after
            .iter()
            .zip(before)
            .all(|(after, before)| *after <= before)
    });
    let grown = memory_kib(pid).saturating_sub(memory);
    assert!(grown < MORE_KIB, "{grown} KiB more");
    neighbour.goes_on();
    neighbour.stop();
    program.stop();
}
