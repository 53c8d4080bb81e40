//! Exports that come and go leave nothing, and do not disturb a guest on the same iothread.

use std::fs::DirEntry;

use rustix::process::Pid;

use crate::request_driver::{IN, OUT, RequestDriver};
use crate::{EXPORT_OF_UNDISTURBED_GUEST, start_undisturbed_guest, start_with_images};

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
    let (folder, mut program, mut client) =
        start_with_images(&["disk", "other"], EXPORT_OF_UNDISTURBED_GUEST);
    let pid = program.pid();
    let guest = start_undisturbed_guest(&folder);
    guest.goes_on("its start");
    let mut before = None;
    for cycle in 0..CYCLES {
        client.execute(
            "blockdev-add driver=file node-name=o filename=other
             block-export-add type=vhost-user-blk id=e node-name=o writable=true iothread=a num-queues=2 addr.type=unix addr.path=e.sock",
        );
        let mut other = RequestDriver::connect(&folder.join("e.sock"), 2);
        other.request(0, OUT, 1, 7);
        other.request(1, IN, 1, 0);
        // In flight when its export goes, every other time.
        if cycle % 2 == 0 {
            other.ask(0, 0, IN, 2, 0);
        }
        client.execute("block-export-del id=e mode=hard");
        client.event("BLOCK_EXPORT_DELETED", "e");
        drop(other);
        client.execute("blockdev-del node-name=o");
        if cycle % 10 == 0 {
            guest.goes_on(format_args!("cycle {cycle}"));
        }
        if cycle == CYCLES / 10 {
            // What is made on demand and kept is there now.
            before = Some((footprint(pid), program.anonymous_memory_kib()));
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
    let grown = program.anonymous_memory_kib().saturating_sub(memory);
    assert!(grown < MORE_KIB, "{grown} KiB more");
    guest.goes_on("all cycles");
    guest.stop();
    program.stop();
}
