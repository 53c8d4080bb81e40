//! A guest that moves between two QEMUs, each with a server of its own on the same image, or after its disk has moved.
//!
//! It writes and reads back on all CPUs meanwhile, and would oops or find other data if a page were not copied that was written. That no
//! order of events lets one be forgotten is what `virtqueue/tests/virtqueue/dirty_log.rs` is about.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::thread;
use std::time::{Duration, Instant};

use guest::{Boot, Movable, Scenario, Server, ServerOptions};
use serde_json::{Value, json};

/// There and back.
const ROUNDS: u32 = 10;
/// Long enough for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(700);
/// For twenty moves, each of which takes two seconds where nothing else runs.
const LIMIT: Duration = Duration::from_secs(1800);
/// Until something happens in the guest that happens in any case.
const SURELY: Duration = Duration::from_secs(120);

/// Two servers of one disk.
struct Hosts {
    _folder: tempfile::TempDir,
    servers: [Server; 2],
    /// The record of what is in flight moves as well.
    with_record: bool,
}

impl Hosts {
    /// Servers that do not share storage.
    fn with_images_of_their_own() -> Hosts {
        let folder = guest::disk_folder().unwrap();
        let program = guest::blockplane().unwrap();
        let serve = |name: &str| {
            let mut options = ServerOptions::new(&folder.path().join(name), 64 << 20);
            options.num_queues = 2;
            options.monitor = true;
            options.locking = Some("on");
            Server::start(&program, &options).unwrap_or_else(|error| panic!("{error}"))
        };
        let servers = [serve("here.img"), serve("there.img")];
        Hosts {
            _folder: folder,
            servers,
            with_record: false,
        }
    }

    fn new(packed: bool) -> Hosts {
        let folder = guest::disk_folder().unwrap();
        let mut options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
        options.num_queues = 2;
        options.packed = packed;
        options.monitor = true;
        options.faults = true;
        let program = guest::blockplane().unwrap();
        let serve = |starts_inactive| {
            let options = ServerOptions {
                locking: Some("on"),
                starts_inactive,
                ..options.clone()
            };
            Server::start(&program, &options).unwrap_or_else(|error| panic!("{error}"))
        };
        let servers = [serve(false), serve(true)];
        Hosts {
            _folder: folder,
            servers,
            with_record: false,
        }
    }

    /// Has a guest write and read back on the first host while `act` moves it.
    fn while_at_work(self, mut act: impl FnMut(&mut Movable<'_>, &[Server; 2])) {
        let mut boot = Boot::new(&self.servers[0], Scenario::Crashes).limit(LIMIT);
        if self.with_record {
            boot = boot.inflight_migration();
        }
        let report = boot
            .run_moving(|question, guest| {
                assert_eq!(question, "crashes");
                thread::sleep(AT_WORK);
                act(guest, &self.servers);
                thread::sleep(AT_WORK);
            })
            .unwrap_or_else(|error| panic!("{error}"));
        let writers = 2 * self.servers[0].options().num_queues;
        assert_eq!(report.idle_writer(writers), None);
        for server in self.servers {
            server.stop().unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// Whether a server has the image with its lock.
fn has_image(server: &Server) -> bool {
    let nodes = server.query("query-named-block-nodes", "{}").unwrap();
    let nodes = serde_json::from_str::<Value>(&nodes).unwrap()["return"].take();
    let mut nodes = nodes.as_array().unwrap().iter();
    nodes.all(|node| node["active"] == true)
}

/// Moves a guest, and with it the lock of its image.
fn move_to(guest: &mut Movable<'_>, from: &Server, to: &Server) {
    assert_eq!([from, to].map(has_image), [true, false], "before");
    guest.move_to(to).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!([from, to].map(has_image), [false, true], "behind");
    let activate = r#"{"node-name": "d", "active": true}"#;
    let refused = from.execute("blockdev-set-active", activate);
    assert!(refused.is_err(), "the other one has the lock");
}

fn there_and_back(packed: bool, rounds: u32) {
    Hosts::new(packed).while_at_work(|guest, [here, there]| {
        for _ in 0..rounds {
            for (from, to) in [(here, there), (there, here)] {
                move_to(guest, from, to);
                thread::sleep(AT_WORK);
            }
        }
    });
}

#[test]
fn migration_works_there_and_back_under_load() {
    there_and_back(false, ROUNDS);
}

#[test]
fn migration_works_with_packed_queues() {
    there_and_back(true, 1);
}

/// The first of the things that a query lists; null if there is none.
fn ask(server: &Server, query: &str) -> Value {
    let reply = server.query(query, "{}").unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    reply["return"][0].clone()
}

/// Requests that wait after an error.
fn waiting(server: &Server) -> u64 {
    ask(server, "query-block-exports")["waiting-requests"]
        .as_u64()
        .unwrap()
}

/// What each queue has read so far.
fn reads(server: &Server) -> Vec<u64> {
    let queues = ask(server, "query-blockstats")["queues"].take();
    let reads = |queue: &Value| queue["stats"]["rd_operations"].as_u64().unwrap();
    queues.as_array().unwrap().iter().map(reads).collect()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SURELY;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {SURELY:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Which requests fail, as JSON; none of those that wait already.
fn fail(server: &Server, rules: &str) {
    let arguments = format!(r#"{{"node-name": "b", "inject-error": [{rules}]}}"#);
    server.execute("x-blkdebug-set", &arguments).unwrap();
}

/// Moves a guest there and back, each time while requests wait that `rule` hits and `others` have done what they are to do.
fn there_and_back_waiting(hosts: Hosts, rule: &str, others: impl Fn(&Server)) {
    hosts.while_at_work(|guest, [here, there]| {
        for (from, to) in [(here, there), (there, here)] {
            fail(from, rule);
            wait_until("a request waits", || waiting(from) > 0);
            others(from);
            move_to(guest, from, to);
            assert_eq!(waiting(from), 0);
            fail(from, "");
            thread::sleep(AT_WORK);
        }
    });
}

#[test]
fn migration_moves_parked_requests() {
    there_and_back_waiting(Hosts::new(false), r#"{"errno": 5}"#, |from| {
        wait_until("each writer runs into it", || waiting(from) == 4);
    });
}

/// Those that were taken later are answered, as the error is only in the part of the first writer.
fn amid_others(packed: bool) {
    let mut hosts = Hosts::new(packed);
    hosts.with_record = true;
    let rule = r#"{"errno": 5, "iotype": "write", "sector": 0, "sectors": 16384}"#;
    there_and_back_waiting(hosts, rule, |from| {
        let before = reads(from);
        // The second one that a writer has read is one that was taken later.
        wait_until("each queue goes on", || {
            let now = reads(from);
            before
                .iter()
                .zip(now)
                .all(|(before, now)| now >= *before + 2)
        });
    });
}

#[test]
fn migration_moves_parked_requests_in_the_inflight_region() {
    amid_others(false);
}

#[test]
fn migration_moves_parked_requests_of_packed_queues() {
    amid_others(true);
}

/// Has the disk of a server go over to that of another one, through NBD.
fn move_disk(from: &Server, to: &Server, folder: &std::path::Path) {
    let path = folder.join("nbd").display().to_string();
    let execute = |server: &Server, command: &str, arguments: Value| {
        let done = server.execute(command, &arguments.to_string());
        done.unwrap_or_else(|error| panic!("{error}"));
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
        ask(from, "query-jobs")["status"] == "ready"
    });
    execute(from, "job-complete", json!({"id": "move"}));
    wait_until("the job has ended", || ask(from, "query-jobs").is_null());
    assert_eq!(ask(from, "query-block-exports")["node-name"], "there");
    execute(from, "blockdev-del", json!({"node-name": "d"}));
}

#[test]
fn guest_moves_with_its_disk_to_a_host_without_shared_storage() {
    let folder = tempfile::tempdir().unwrap();
    Hosts::with_images_of_their_own().while_at_work(|guest, [here, there]| {
        move_disk(here, there, folder.path());
        thread::sleep(AT_WORK);
        guest
            .move_to(there)
            .unwrap_or_else(|error| panic!("{error}"));
        let remove = r#"{"id": "way-in", "mode": "hard"}"#;
        there.execute("block-export-del", remove).unwrap();
    });
}
