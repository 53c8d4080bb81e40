//! A guest that moves between two QEMUs, each with a server of its own on the same image, or after its disk has moved.
//!
//! It writes and reads back on all CPUs meanwhile, and would oops or find other data if a page were not copied that was written. That no
//! order of events lets one be forgotten is what `crates/virtqueue/tests/virtqueue/dirty_log.rs` is about.

use std::path::Path;
use std::thread;
use std::time::Duration;

use guest::{Boot, QemuVersion, RunningGuest, Server, ServerOptions};
use serde_json::{Value, json};

use crate::{disk, serve, wait_until};

/// Long enough for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(700);
/// For twenty moves, each of which takes two seconds where nothing else runs.
const LIMIT: Duration = Duration::from_secs(1800);
const QUEUES: u16 = 2;
const ANY_REQUEST: &str = r#"[{"errno": 5}]"#;
/// In the part of the first writer only.
const SOME_WRITES: &str = r#"[{"errno": 5, "iotype": "write", "sector": 0, "sectors": 16384}]"#;

fn options() -> (tempfile::TempDir, ServerOptions) {
    let (folder, mut options) = disk(64 << 20);
    options.num_queues = QUEUES;
    options.monitor = true;
    options.locking = Some("on");
    (folder, options)
}

/// Two servers of one disk; the second is the destination.
fn two_servers(packed: bool) -> (tempfile::TempDir, [Server; 2]) {
    let (folder, mut options) = options();
    options.packed = packed;
    options.faults = true;
    let here = serve(&options);
    options.starts_inactive = true;
    (folder, [here, serve(&options)])
}

/// Has a guest write and read back on the first host while `act` moves it, with what is in flight or not.
fn while_at_work(
    servers: [Server; 2],
    inflight_migration: bool,
    mut act: impl FnMut(&mut RunningGuest<'_>, &[Server; 2]),
) {
    let mut boot = Boot::new(&servers[0], "verified_rounds").qemu(QemuVersion::V11_1);
    if inflight_migration {
        boot = boot.inflight_migration();
    }
    let report = boot
        .limit(LIMIT)
        .run_asking(|_, guest| {
            thread::sleep(AT_WORK);
            act(guest, &servers);
            thread::sleep(AT_WORK);
        })
        .unwrap();
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    for server in servers {
        server.stop().unwrap();
    }
}

fn ask(server: &Server, query: &str) -> Value {
    server.query(query, &json!({})).unwrap()
}

/// Whether a server has the image with its lock.
fn has_image(server: &Server) -> bool {
    let nodes = ask(server, "query-named-block-nodes");
    let mut nodes = nodes.as_array().unwrap().iter();
    nodes.all(|node| node["active"] == true)
}

/// Moves a guest, and with it the lock of its image.
fn move_to(guest: &mut RunningGuest<'_>, from: &Server, to: &Server) {
    assert_eq!([from, to].map(has_image), [true, false], "before");
    guest.move_to(to).unwrap();
    assert_eq!([from, to].map(has_image), [false, true], "behind");
    let activate = json!({"node-name": "d", "active": true});
    let refused = from.query("blockdev-set-active", &activate);
    assert!(refused.is_err(), "the other one has the lock");
    thread::sleep(AT_WORK);
}

/// Requests that wait after an error.
fn waiting(server: &Server) -> u64 {
    let exports = ask(server, "query-block-exports");
    exports[0]["waiting-requests"].as_u64().unwrap()
}

/// What each queue has read so far.
fn reads(server: &Server) -> Vec<u64> {
    let queues = ask(server, "query-blockstats")[0]["queues"].take();
    let reads = |queue: &Value| queue["stats"]["rd_operations"].as_u64().unwrap();
    queues.as_array().unwrap().iter().map(reads).collect()
}

/// Which requests fail; none of those that wait already.
fn fail(server: &Server, rules: &str) {
    let rules: Value = serde_json::from_str(rules).unwrap();
    let arguments = json!({"node-name": "b", "inject-error": rules});
    server.query("x-blkdebug-set", &arguments).unwrap();
}

/// Moves a guest all of whose writers' requests wait.
fn move_waiting(guest: &mut RunningGuest<'_>, from: &Server, to: &Server) {
    fail(from, ANY_REQUEST);
    wait_until("each writer runs into it", || waiting(from) == 4);
    move_to(guest, from, to);
    assert_eq!(waiting(from), 0);
    fail(from, "[]");
}

/// Moves a guest while some requests wait, and those that were taken later are answered.
fn move_amid_others(guest: &mut RunningGuest<'_>, from: &Server, to: &Server) {
    fail(from, SOME_WRITES);
    wait_until("a request waits", || waiting(from) > 0);
    let before = reads(from);
    // The second one that a writer has read is one that was taken later.
    wait_until("each queue goes on", || {
        let now = reads(from);
        before
            .iter()
            .zip(now)
            .all(|(before, now)| now >= *before + 2)
    });
    move_to(guest, from, to);
    assert_eq!(waiting(from), 0);
    fail(from, "[]");
}

#[test]
fn guest_moves_there_and_back_with_parked_requests() {
    let (_folder, servers) = two_servers(true);
    while_at_work(servers, true, |guest, [here, there]| {
        move_to(guest, here, there);
        move_amid_others(guest, there, here);
    });
}

#[test]
#[ignore = "full run only"]
fn twenty_moves_work_under_load() {
    for (packed, rounds) in [(false, 9), (true, 1)] {
        let (_folder, servers) = two_servers(packed);
        while_at_work(servers, false, |guest, [here, there]| {
            for _ in 0..rounds {
                move_to(guest, here, there);
                move_to(guest, there, here);
            }
        });
    }
}

#[test]
#[ignore = "full run only"]
fn parked_requests_move_in_the_ring() {
    let (_folder, servers) = two_servers(false);
    while_at_work(servers, false, |guest, [here, there]| {
        move_waiting(guest, here, there);
        move_waiting(guest, there, here);
    });
}

#[test]
#[ignore = "full run only"]
fn parked_requests_move_in_the_inflight_region() {
    let (_folder, servers) = two_servers(false);
    while_at_work(servers, true, |guest, [here, there]| {
        move_amid_others(guest, here, there);
        move_amid_others(guest, there, here);
    });
}

/// Has the disk of a server go over to that of another one, through NBD.
fn move_disk(from: &Server, to: &Server, folder: &Path) {
    let path = folder.join("nbd");
    let execute = |server: &Server, command: &str, arguments: Value| {
        server.query(command, &arguments).unwrap();
    };
    let address = json!({"addr": {"type": "unix", "data": {"path": path}}});
    execute(to, "nbd-server-start", address);
    let export = json!({"type": "nbd", "id": "way-in", "node-name": "d", "name": "way-in", "writable": true});
    execute(to, "block-export-add", export);
    let server = json!({"type": "unix", "path": path});
    let node = json!({"driver": "nbd", "node-name": "there", "server": server, "export": "way-in"});
    execute(from, "blockdev-add", node);
    let job = json!({"job-id": "move", "device": "d", "target": "there", "sync": "full"});
    execute(from, "blockdev-mirror", job);
    wait_until("the mirror is ready", || {
        ask(from, "query-jobs")[0]["status"] == "ready"
    });
    execute(from, "job-complete", json!({"id": "move"}));
    wait_until("the job has ended", || ask(from, "query-jobs")[0].is_null());
    let exports = ask(from, "query-block-exports");
    assert_eq!(exports[0]["node-name"], "there");
    execute(from, "blockdev-del", json!({"node-name": "d"}));
}

#[test]
#[ignore = "full run only"]
fn guest_moves_with_its_disk_to_a_host_without_shared_storage() {
    let (_here, here) = options();
    let (_there, there) = options();
    let folder = tempfile::tempdir().unwrap();
    let servers = [serve(&here), serve(&there)];
    while_at_work(servers, false, |guest, [here, there]| {
        move_disk(here, there, folder.path());
        thread::sleep(AT_WORK);
        guest.move_to(there).unwrap();
        let remove = json!({"id": "way-in", "mode": "hard"});
        there.query("block-export-del", &remove).unwrap();
    });
}
