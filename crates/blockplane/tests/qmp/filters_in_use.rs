//! Filters are inserted and removed under running disks while their guests write and read.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};
use test_support::guest::commands::Data;
use test_support::guest::{Guest, IN, OUT};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;
use test_support::verifying::guest::Guest as VerifyingGuest;
use test_support::verifying::random::Random;
use test_support::vhost_user::wire::Wire;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::start;

const BLOCKS: u64 = 256;
/// Logical blocks of 512 bytes in one.
const SECTORS: u8 = 8;
const QUEUES: usize = 4;

/// A file, a node in front of it that keeps its name, and an export of that on two iothreads.
fn line(kind: &str) -> String {
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=d,filename=disk.img \
         --blockdev raw,node-name=disk,file=d \
         --export {kind},id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
    )
}

fn disk_onto(node: &str) -> Value {
    json!({"options": [{"driver": "raw", "node-name": "disk", "file": node}]})
}

fn add_filter(client: &mut Client, faults: Value) {
    let filter =
        json!({"driver": "blkdebug", "node-name": "f", "image": "d", "inject-error": faults});
    client.done("blockdev-add", filter);
}

/// Adds a node with a limit that makes most requests wait, so that some wait when it is taken away.
fn add_throttle(client: &mut Client) {
    let group = json!({"qom-type": "throttle-group", "id": "g", "limits": {"iops-total": 200}});
    client.done("object-add", group);
    let node = json!({"driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "d"});
    client.done("blockdev-add", node);
}

/// Some requests take longer, so that they are still with a filter when it is taken away.
fn delays() -> Value {
    json!([{"action": "delay", "delay-ns": 200_000, "one-in": 3}])
}

/// A guest that loads its disk and verifies what it reads, on a thread of its own.
struct Load {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Load {
    /// Starts a guest on a thread that writes and verifies until the load ends.
    fn begin(folder: &Folder, device: Device) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, socket) = (ends.clone(), folder.join("e.sock"));
        let thread = std::thread::spawn(move || {
            let mut random = Random(42);
            let wire = Wire::connect(&socket);
            let mut guest = VerifyingGuest::new(device, false, QUEUES, BLOCKS);
            guest.introduce(&wire, || ()).unwrap();
            while !seen.load(Ordering::Relaxed) {
                guest.ask_some(&mut random);
                let deadline = Deadline::default();
                while !guest.look() {
                    deadline.check("an answer");
                    guest.sleep(&wire).unwrap();
                }
            }
            guest.drains_to(0, &wire);
            for block in 0..guest.blocks.count() {
                guest.ask(
                    guest.request_queues().start,
                    test_support::verifying::device::Op::Read,
                    block,
                );
                guest.drains_to(0, &wire);
            }
            guest.answers
        });
        Load { ends, thread }
    }

    /// Everything was right, and so many requests were answered.
    fn ended_well(self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn descriptors(program: &Process) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
    fds.count()
}

/// Anonymous memory that a process has, in KiB.
fn memory_kib(program: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Inserts a filter and removes it in each round, under load; nothing may be lost or accumulate.
fn filters_come_and_go(kind: &str, device: Device, rounds: usize) {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(&folder, &line(kind));
    let load = Load::begin(&folder, device);
    let mut before = None;
    for round in 0..rounds {
        add_filter(&mut client, delays());
        client.done("blockdev-reopen", disk_onto("f"));
        client.done("blockdev-reopen", disk_onto("d"));
        client.done("blockdev-del", json!({"node-name": "f"}));
        if round == rounds / 4 {
            before = Some((descriptors(&program), memory_kib(&program)));
        }
    }
    let answers = load.ended_well();
    let (fds, memory) = before.unwrap();
    assert!(answers > rounds as u64, "{answers}");
    // The guest's own connection and queues are there in both counts, or gone in the second.
    assert!(
        descriptors(&program) <= fds,
        "{} of {fds}",
        descriptors(&program)
    );
    let now = memory_kib(&program);
    assert!(now <= memory + 4096, "{now} KiB after {memory} KiB");
    program.stop();
}

#[test]
fn throttled_node_is_inserted_and_removed_under_a_busy_disk() {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(&folder, &line("vhost-user-blk"));
    let load = Load::begin(&folder, Device::Blk);
    for _ in 0..rounds() {
        add_throttle(&mut client);
        client.done("blockdev-reopen", disk_onto("f"));
        eventually("a request waits", || {
            let stats = client.done("query-blockstats", json!({}));
            stats[0]["throttle"][0]["waiting"].as_u64() > Some(0)
        });
        client.done("blockdev-reopen", disk_onto("d"));
        client.done("blockdev-del", json!({"node-name": "f"}));
        client.done("object-del", json!({"id": "g"}));
    }
    let answers = load.ended_well();
    assert!(answers > rounds() as u64, "{answers}");
    program.stop();
}

/// `BLOCKPLANE_FILTERS`: how often.
fn rounds() -> usize {
    let rounds = std::env::var("BLOCKPLANE_FILTERS").ok();
    rounds.map_or(60, |rounds| rounds.parse().unwrap())
}

#[test]
fn filter_is_inserted_and_removed_under_a_busy_virtio_disk() {
    filters_come_and_go("vhost-user-blk", Device::Blk, rounds());
}

#[test]
fn filter_is_inserted_and_removed_under_a_busy_scsi_disk() {
    filters_come_and_go("vhost-user-scsi", Device::Scsi, rounds());
}

/// An exchange of nodes that waits for a write.
struct Waiting {
    program: Process,
    client: Client,
    guest: Guest,
    folder: Folder,
}

/// A write that takes an hour is with a filter, which also fails reads, when that is taken away: reads of the same disk by another queue
/// succeed soon, and the exchange waits for the write.
fn served_while_a_write_is_with_the_old_node(
    kind: &str,
    connect: fn(&Path) -> Guest,
    write: fn(&mut Guest),
    read: fn(&mut Guest) -> u8,
) -> Waiting {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(&folder, &line(kind));
    let an_hour = json!([{"action": "delay", "delay-ns": 3_600_000_000_000_u64, "iotype": "write"},
        {"errno": 5, "iotype": "read"}]);
    add_filter(&mut client, an_hour);
    client.done("blockdev-reopen", disk_onto("f"));
    let mut guest = connect(&folder.join("e.sock"));
    write(&mut guest);
    eventually("the write is under way", || {
        let stats = client.done("query-blockstats", json!({}));
        let queues = stats[0]["queues"].as_array().unwrap();
        queues.iter().any(|queue| queue["depth"] == 1)
    });
    assert_ne!(read(&mut guest), 0, "the filter fails it");
    client.send("blockdev-reopen", &disk_onto("d"));
    eventually("a read by the new node", || read(&mut guest) == 0);
    assert!(!client.is_answered());
    Waiting {
        program,
        client,
        guest,
        folder,
    }
}

/// A virtio-blk disk whose write is in flight at the old node while another queue is served.
fn virtio_disk_with_a_write_with_the_old_node() -> Waiting {
    served_while_a_write_is_with_the_old_node(
        "vhost-user-blk",
        |socket| Guest::connect(socket, 2),
        |guest| guest.ask(0, 0, OUT, 0, 1),
        |guest| {
            guest.ask(1, 0, IN, 1, 0);
            guest.watch(1, 0);
            guest.status(1, 0)
        },
    )
}

#[test]
fn virtio_disk_is_served_by_the_new_node_while_a_request_is_with_the_old_one() {
    virtio_disk_with_a_write_with_the_old_node();
}

#[test]
fn shutdown_works_while_a_node_exchange_waits_for_a_delayed_request() {
    let Waiting { program, guest, .. } = virtio_disk_with_a_write_with_the_old_node();
    program.stop();
    assert_eq!(guest.status(0, 0), 0, "its queue has stopped");
}

/// A node below the filter is opened anew. So no queue may take more before what it has is done.
#[test]
fn shutdown_works_while_a_reopened_disk_waits_for_a_delayed_request() {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    // On the iothread of the other queue.
    let neighbour = "--blockdev null-co,node-name=null,size=1M \
        --export vhost-user-blk,id=n,node-name=null,iothread=io1,addr.type=unix,addr.path=n.sock";
    let (program, mut client) = start(&folder, &format!("{} {neighbour}", line("vhost-user-blk")));
    add_filter(
        &mut client,
        json!([{"action": "delay", "delay-ns": 3_600_000_000_000_u64, "iotype": "write"}]),
    );
    client.done("blockdev-reopen", disk_onto("f"));
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    guest.ask(0, 0, OUT, 0, 1);
    eventually("the write is under way", || {
        let stats = client.done("query-blockstats", json!({}));
        stats[0]["queues"][0]["depth"] == 1
    });
    let no_flush = json!({"driver": "file", "node-name": "d", "filename": "disk.img",
        "cache": {"no-flush": true}});
    client.send("blockdev-reopen", &json!({"options": [no_flush]}));
    let mut neighbour = Guest::connect(&folder.join("n.sock"), 1);
    let mut other = Client::connect(&folder.join("qmp"));
    eventually("the other queue takes nothing", || {
        guest.ask(1, 0, IN, 1, 0);
        // With two more requests the iothread has looked at the other queue as well, or has published its answer.
        let mut iterate = || (0..2).for_each(|_| neighbour.request(0, IN, 0, 0));
        iterate();
        let stats = other.done("query-blockstats", json!({}));
        iterate();
        if stats[0]["queues"][1]["depth"] == 1 {
            guest.watch(1, 0);
        }
        !guest.is_answered(1, 0)
    });
    guest.enable(1, true);
    assert_eq!(
        guest.capacity(),
        BLOCKS * BLOCK as u64,
        "the front-end is served"
    );
    assert!(!guest.is_answered(1, 0) && !client.is_answered());
    program.stop();
    assert_eq!(guest.status(0, 0), 0, "its queue has stopped");
}

#[test]
fn front_end_reconnects_while_a_node_exchange_waits_for_a_delayed_request() {
    let mut waiting = virtio_disk_with_a_write_with_the_old_node();
    drop(waiting.guest);
    let mut guest = Guest::connect(&waiting.folder.join("e.sock"), 1);
    guest.request(0, IN, 0, 0);
    assert_eq!(guest.data(0, 0), vec![1; BLOCK]);
    waiting.client.answer();
    waiting.program.stop();
}

/// Of two exports of a disk the first has a write that takes an hour with a filter that is taken away. So the second one's turn does not
/// come.
#[test]
fn requests_to_a_filter_being_removed_do_not_hang() {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let second =
        "--export vhost-user-blk,id=second,node-name=disk,addr.type=unix,addr.path=second.sock";
    let line = format!("{} {second}", line("vhost-user-blk"));
    let (program, mut client) = start(&folder, &line);
    let faults = json!([{"action": "delay", "delay-ns": 3_600_000_000_000_u64, "iotype": "write"},
        {"action": "hang", "iotype": "read"}]);
    add_filter(&mut client, faults);
    client.done("blockdev-reopen", disk_onto("f"));
    let mut first = Guest::connect(&folder.join("e.sock"), 2);
    let mut second = Guest::connect(&folder.join("second.sock"), 1);
    first.ask(0, 0, OUT, 0, 1);
    first.ask(1, 0, IN, 1, 0);
    eventually("both are under way", || {
        let stats = client.done("query-blockstats", json!({}));
        let queues = stats[0]["queues"].as_array().unwrap();
        queues.iter().filter(|queue| queue["depth"] == 1).count() == 2
    });
    client.send("blockdev-reopen", &disk_onto("d"));
    // It is released.
    first.wait(1, 0);
    second.request(0, IN, 1, 0);
    assert!(!client.is_answered());
    // Nothing waits for the write.
    drop(program);
}

#[test]
fn scsi_disk_is_served_by_the_new_node_while_a_command_is_with_the_old_one() {
    const UNIT: (u8, u8) = (0, 0);
    served_while_a_write_is_with_the_old_node(
        "vhost-user-scsi",
        |socket| {
            let mut guest = Guest::connect_scsi(socket, 2);
            assert_eq!(guest.command(2, UNIT, &[0; 6]), 2, "it was switched on");
            guest
        },
        |guest| {
            let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, SECTORS, 0];
            guest.begin(2, UNIT, &write, Data::Out(&[1; BLOCK]));
        },
        |guest| guest.command(3, UNIT, &[0x28, 0, 0, 0, 0, SECTORS, 0, 0, SECTORS, 0]),
    );
}

#[test]
fn removing_a_filter_releases_its_hanging_requests() {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(&folder, &line("vhost-user-blk"));
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    add_filter(
        &mut client,
        json!([{"errno": 28, "iotype": "write"}, {"action": "hang", "iotype": "read"}]),
    );
    client.done("blockdev-reopen", disk_onto("f"));
    guest.ask(0, 0, OUT, 0, 2);
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), 1, "the filter fails it");
    guest.ask(0, 1, IN, 0, 0);
    client.done("query-named-block-nodes", json!({}));
    assert!(!guest.is_answered(0, 1));
    client.done("blockdev-reopen", disk_onto("d"));
    guest.wait(0, 1);
    assert_eq!((guest.status(0, 1), guest.data(0, 1)), (0, vec![1; BLOCK]));
    guest.request(0, OUT, 0, 3);
    client.done("blockdev-del", json!({"node-name": "f"}));
    program.stop();
}

#[test]
fn node_graph_rejects_cycles_and_removal_of_nodes_in_use() {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    folder.image("other.img", BLOCKS * BLOCK as u64 / 2);
    let (program, mut client) = start(&folder, &line("vhost-user-blk"));
    let filter = json!({"driver": "blkdebug", "node-name": "f", "image": "disk"});
    client.done("blockdev-add", filter);
    let text = client.fails("blockdev-reopen", disk_onto("f"));
    assert!(text.contains("cycle"), "{text}");
    client.done("blockdev-del", json!({"node-name": "f"}));
    let text = client.fails("blockdev-reopen", disk_onto("nowhere"));
    assert!(text.contains("nowhere"), "{text}");
    let other = json!({"driver": "file", "node-name": "other", "filename": "other.img"});
    client.done("blockdev-add", other);
    let text = client.fails("blockdev-reopen", disk_onto("other"));
    assert!(text.contains("bytes"), "{text}");
    add_filter(&mut client, json!([]));
    client.done("blockdev-reopen", disk_onto("f"));
    let text = client.fails("blockdev-del", json!({"node-name": "f"}));
    assert!(text.contains("disk"), "{text}");
    // What is below the filter is opened anew with all that is in front of it.
    let below = json!({"options": [{"driver": "file", "node-name": "d", "filename": "disk.img",
        "cache": {"direct": false}}]});
    client.done("blockdev-reopen", below);
    let nodes = client.done("query-named-block-nodes", json!({}));
    for node in nodes.as_array().unwrap() {
        let is_other = node["node-name"] == "other";
        assert_eq!(node["cache"]["direct"] == true, is_other, "{node}");
    }
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    program.stop();
}
