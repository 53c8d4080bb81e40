//! Dirty bitmaps that are added, switched and removed while a guest writes: no write is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::guest::{Guest, OUT};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::{Device, Op};
use test_support::verifying::guest::Guest as VerifyingGuest;
use test_support::verifying::random::Random;
use test_support::vhost_user::wire::Wire;

use crate::client::Client;
use crate::process::Folder;
use crate::start;

const BLOCKS: u64 = 8192;
const QUEUES: usize = 4;

/// A file, a window onto it, and an export of that on two iothreads.
fn line(kind: &str) -> String {
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
         --blockdev raw,node-name=disk,file=d \
         --export {kind},id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
    )
}

fn bitmap(name: &str) -> Value {
    json!({"node": "d", "name": name})
}

fn new_bitmap(name: &str) -> Value {
    json!({"node": "d", "name": name, "granularity": BLOCK})
}

fn switch(old: &str, new: &str) -> Value {
    json!({"actions": [
        {"type": "block-dirty-bitmap-add", "data": new_bitmap(new)},
        {"type": "block-dirty-bitmap-disable", "data": bitmap(old)},
    ]})
}

/// The bitmaps of a node.
fn bitmaps(client: &mut Client, node: &str) -> Vec<Value> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let mut nodes = nodes.as_array().unwrap().iter();
    let found = nodes.find(|found| found["node-name"] == node).unwrap();
    let bitmaps = found.get("dirty-bitmaps").and_then(Value::as_array);
    bitmaps.cloned().unwrap_or_default()
}

/// Dirty blocks of a bitmap.
fn dirty_blocks(client: &mut Client, name: &str) -> u64 {
    let bitmaps = bitmaps(client, "d");
    let found = bitmaps.iter().find(|bitmap| bitmap["name"] == name);
    found.unwrap()["count"].as_u64().unwrap() / BLOCK as u64
}

/// A guest that writes each block once.
struct Load {
    asked: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Load {
    fn begin(folder: &Folder, device: Device) -> Self {
        let asked = Arc::new(AtomicU64::new(0));
        let answered = Arc::new(AtomicU64::new(0));
        let (count, done, socket) = (asked.clone(), answered.clone(), folder.join("e.sock"));
        let thread = std::thread::spawn(move || {
            let mut random = Random(7);
            let wire = Wire::connect(&socket);
            let mut guest = VerifyingGuest::new(device, false, QUEUES, BLOCKS);
            guest.introduce(&wire, || ()).unwrap();
            let queues = guest.request_queues();
            // 17 and the number of blocks have no common factor.
            for turn in 0..BLOCKS {
                let block = usize::try_from(turn * 17 % BLOCKS).unwrap();
                let queue = usize::try_from(turn).unwrap() % QUEUES + queues.start;
                count.store(turn + 1, Ordering::SeqCst);
                guest.ask(queue, Op::Write, block);
                guest.drains_to(random.below(12), &wire);
                done.store(guest.writes, Ordering::SeqCst);
            }
            guest.drains_to(0, &wire);
            done.store(guest.writes, Ordering::SeqCst);
        });
        Load {
            asked,
            answered,
            thread,
        }
    }
}

/// One bitmap after the other records, the first from the beginning or from the middle of the load on.
fn no_write_is_missing(kind: &str, device: Device, first_before_load: bool) {
    let folder = Folder::new();
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(&folder, &line(kind));
    if first_before_load {
        client.done("block-dirty-bitmap-add", new_bitmap("0"));
    }
    let load = Load::begin(&folder, device);
    let (mut most, mut least) = (BLOCKS, BLOCKS);
    if !first_before_load {
        eventually("some writes", || {
            load.answered.load(Ordering::SeqCst) > BLOCKS / 8
        });
        most -= load.answered.load(Ordering::SeqCst);
        client.done("block-dirty-bitmap-add", new_bitmap("0"));
        least -= load.asked.load(Ordering::SeqCst);
        assert!(least > 0, "writes follow");
    }
    let mut found = 0;
    for turn in 0.. {
        let is_last = load.thread.is_finished();
        let (old, new) = (turn.to_string(), (turn + 1).to_string());
        client.done("transaction", switch(&old, &new));
        found += dirty_blocks(&mut client, &old);
        client.done("block-dirty-bitmap-remove", bitmap(&old));
        if is_last {
            break;
        }
    }
    load.thread.join().unwrap();
    assert!(
        (least..=most).contains(&found),
        "{found} of {least} to {most} blocks"
    );
    program.stop();
}

#[test]
fn each_write_of_a_virtio_disk_is_in_one_of_the_bitmaps_that_are_switched() {
    no_write_is_missing("vhost-user-blk", Device::Blk, true);
}

#[test]
fn each_write_of_a_scsi_disk_is_in_one_of_the_bitmaps_that_are_switched() {
    no_write_is_missing("vhost-user-scsi", Device::Scsi, true);
}

#[test]
fn bitmap_that_is_added_under_load_misses_no_later_write_of_a_virtio_disk() {
    no_write_is_missing("vhost-user-blk", Device::Blk, false);
}

#[test]
fn bitmap_that_is_added_under_load_misses_no_later_write_of_a_scsi_disk() {
    no_write_is_missing("vhost-user-scsi", Device::Scsi, false);
}

/// A filter with these faults is above the node with the bitmap.
fn filtered(folder: &Folder, faults: Value) -> (crate::process::Process, Client, Guest) {
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(folder, &line("vhost-user-blk"));
    let filter =
        json!({"driver": "blkdebug", "node-name": "f", "image": "d", "inject-error": faults});
    client.done("blockdev-add", filter);
    let above = json!({"options": [{"driver": "raw", "node-name": "disk", "file": "f"}]});
    client.done("blockdev-reopen", above);
    let guest = Guest::connect(&folder.join("e.sock"), 2);
    (program, client, guest)
}

/// A copy that begins then would miss it otherwise.
#[test]
fn bitmap_is_added_when_writes_that_it_misses_have_ended() {
    let folder = Folder::new();
    let delay = Duration::from_secs(1);
    let faults = json!([{"action": "delay", "delay-ns": delay.as_nanos(), "iotype": "write"}]);
    let (program, mut client, mut guest) = filtered(&folder, faults);
    let begin = Instant::now();
    guest.ask(0, 0, OUT, 0, 1);
    eventually("the write is under way", || {
        let stats = client.done("query-blockstats", json!({}));
        stats[0]["queues"][0]["depth"] == 1
    });
    client.done("block-dirty-bitmap-add", new_bitmap("b"));
    assert!(begin.elapsed() >= delay, "the write is in flight");
    guest.watch(0, 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 0);
    guest.ask(1, 0, OUT, 5, 1);
    guest.watch(1, 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 1);
    program.stop();
}

#[test]
fn failed_write_is_dirty_in_a_bitmap_above_the_fault_and_clean_below() {
    let folder = Folder::new();
    let fails = json!([{"errno": 5, "iotype": "write"}]);
    let (program, mut client, mut guest) = filtered(&folder, fails);
    for node in ["d", "f", "disk"] {
        let arguments = json!({"node": node, "name": "b", "granularity": BLOCK});
        client.done("block-dirty-bitmap-add", arguments);
    }
    guest.ask(0, 0, OUT, 0, 1);
    guest.watch(0, 0);
    assert_ne!(guest.status(0, 0), 0);
    for (node, count) in [("d", 0), ("f", BLOCK), ("disk", BLOCK)] {
        let found = bitmaps(&mut client, node);
        assert_eq!(found[0]["count"], count, "{node}");
    }
    program.stop();
}

#[test]
fn bitmap_stays_with_a_node_that_is_reopened_or_gets_a_filter_or_another_size() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = filtered(&folder, json!([]));
    client.done("block-dirty-bitmap-add", new_bitmap("b"));
    guest.ask(0, 0, OUT, 0, 1);
    guest.watch(0, 0);
    let reopened = json!({"options": [
        {"driver": "file", "node-name": "d", "filename": "disk.img", "cache": {"direct": false, "no-flush": true}},
        {"driver": "raw", "node-name": "disk", "file": "d"},
    ]});
    client.done("blockdev-reopen", reopened);
    assert_eq!(dirty_blocks(&mut client, "b"), 1);
    guest.ask(0, 0, OUT, 8, 1);
    guest.watch(0, 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 2);
    let size = (BLOCKS + 3) * BLOCK as u64;
    client.done("block_resize", json!({"node-name": "d", "size": size}));
    assert_eq!(dirty_blocks(&mut client, "b"), 5, "the new end is dirty");
    client.done("block-dirty-bitmap-disable", bitmap("b"));
    guest.ask(0, 0, OUT, 16, 1);
    guest.watch(0, 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 5, "it does not record");
    program.stop();
}

/// Another program may write to a disk while its node is inactive.
#[test]
fn bitmaps_of_a_node_that_was_inactive_are_inconsistent() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let line = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off";
    let (program, mut client) = start(&folder, line);
    client.done("block-dirty-bitmap-add", new_bitmap("b"));
    assert_eq!(bitmaps(&mut client, "d")[0]["recording"], true);
    for active in [false, true] {
        let set = json!({"node-name": "d", "active": active});
        client.done("blockdev-set-active", set);
    }
    let after = bitmaps(&mut client, "d");
    assert_eq!(after[0]["inconsistent"], true, "{after:?}");
    client.fails("block-dirty-bitmap-clear", bitmap("b"));
    client.done("block-dirty-bitmap-remove", bitmap("b"));
    program.stop();
}
