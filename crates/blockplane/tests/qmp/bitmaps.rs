//! Dirty bitmaps that are added, switched and removed while a guest writes: no write is missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::request_driver::{OUT, RequestDriver};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::{Device, Op};
use test_support::verifying::guest::VerifyingGuest;
use test_support::verifying::random::Random;
use test_support::vhost_user::wire::Wire;

use crate::client::{Client, arguments};
use crate::process::{Folder, Process};
use crate::{start, start_with_disk};

const BLOCKS: u64 = 8192;
const QUEUES: usize = 4;

/// A new bitmap of node `d`, up to its name.
const NEW: &str = "granularity=4096 node=d name";

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

/// The bitmaps of a node.
pub fn bitmaps(client: &mut Client, node: &str) -> Vec<Value> {
    let node = client.node(node);
    let bitmaps = node.get("dirty-bitmaps").and_then(Value::as_array);
    bitmaps.cloned().unwrap_or_default()
}

/// Dirty blocks of a bitmap of node `d`.
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
    /// At the middle it waits for `first_is_added`.
    fn begin(folder: &Folder, device: Device, first_is_added: &Arc<AtomicBool>) -> Self {
        let asked = Arc::new(AtomicU64::new(0));
        let answered = Arc::new(AtomicU64::new(0));
        let (count, done, first_is_added) =
            (asked.clone(), answered.clone(), first_is_added.clone());
        let socket = folder.join("e.sock");
        let thread = std::thread::spawn(move || {
            let mut random = Random(7);
            let wire = Wire::connect(&socket);
            let mut guest = VerifyingGuest::new(device, false, QUEUES, BLOCKS);
            guest.connect_and_start(&wire, || ()).unwrap();
            let queues = guest.request_queues();
            // 17 and the number of blocks have no common factor.
            for turn in 0..BLOCKS {
                while turn == BLOCKS / 2 && !first_is_added.load(Ordering::SeqCst) {
                    guest.drains_to(0, &wire);
                    done.store(guest.writes, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                }
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
    let add_first = format!("block-dirty-bitmap-add {NEW}=b0");
    if first_before_load {
        client.execute(&add_first);
    }
    let first_is_added = Arc::new(AtomicBool::new(first_before_load));
    let load = Load::begin(&folder, device, &first_is_added);
    let (mut most, mut least) = (BLOCKS, BLOCKS);
    if !first_before_load {
        eventually("some writes", || {
            load.answered.load(Ordering::SeqCst) > BLOCKS / 8
        });
        most -= load.answered.load(Ordering::SeqCst);
        client.execute(&add_first);
        least -= load.asked.load(Ordering::SeqCst);
        first_is_added.store(true, Ordering::SeqCst);
        assert!(least > 0, "writes follow");
    }
    let mut found = 0;
    for turn in 0.. {
        let is_last = load.thread.is_finished();
        let (old, new) = (format!("b{turn}"), format!("b{}", turn + 1));
        let switch = json!({"actions": [
            {"type": "block-dirty-bitmap-add", "data": arguments(&format!("{NEW}={new}"))},
            {"type": "block-dirty-bitmap-disable", "data": {"node": "d", "name": old}},
        ]});
        client.done("transaction", switch);
        found += dirty_blocks(&mut client, &old);
        client.execute(&format!("block-dirty-bitmap-remove node=d name={old}"));
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
fn each_write_of_a_disk_is_in_one_of_the_bitmaps_that_are_switched() {
    no_write_is_missing("vhost-user-blk", Device::Blk, true);
    no_write_is_missing("vhost-user-scsi", Device::Scsi, true);
}

#[test]
fn bitmap_that_is_added_under_load_misses_no_later_write() {
    no_write_is_missing("vhost-user-blk", Device::Blk, false);
    no_write_is_missing("vhost-user-scsi", Device::Scsi, false);
}

/// A filter with a fault is above the node with the bitmap.
fn filtered(folder: &Folder, fault: &str) -> (Process, Client, RequestDriver) {
    folder.image("disk.img", BLOCKS * BLOCK as u64);
    let (program, mut client) = start(folder, &line("vhost-user-blk"));
    client.execute(&format!(
        "blockdev-add driver=blkdebug node-name=f image=d {fault}"
    ));
    client.reopen("driver=raw node-name=disk file=f");
    let guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    (program, client, guest)
}

/// A copy that begins then would miss it otherwise.
#[test]
fn bitmap_is_added_when_writes_that_it_misses_have_ended() {
    let folder = Folder::new();
    let delay = Duration::from_millis(500);
    let delay_ns = delay.as_nanos();
    let fault = format!(
        "inject-error.0.action=delay inject-error.0.iotype=write inject-error.0.delay-ns={delay_ns}"
    );
    let (program, mut client, mut guest) = filtered(&folder, &fault);
    let begin = Instant::now();
    guest.ask(0, 0, OUT, 0, 1);
    eventually("the write is under way", || {
        client.block_stats("e")["queues"][0]["depth"] == 1
    });
    client.execute(&format!("block-dirty-bitmap-add {NEW}=b"));
    assert!(begin.elapsed() >= delay, "the write is in flight");
    guest.watch(0, 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 0);
    assert_eq!(guest.status_of(1, OUT, 5, 1), 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 1);
    program.stop();
}

#[test]
fn failed_write_is_dirty_in_a_bitmap_above_the_fault_and_clean_below() {
    let folder = Folder::new();
    let fault = "inject-error.0.errno=5 inject-error.0.iotype=write";
    let (program, mut client, mut guest) = filtered(&folder, fault);
    for node in ["d", "f", "disk"] {
        client.execute(&format!(
            "block-dirty-bitmap-add node={node} name=b granularity={BLOCK}"
        ));
    }
    assert_ne!(guest.status_of(0, OUT, 0, 1), 0);
    for (node, count) in [("d", 0), ("f", BLOCK), ("disk", BLOCK)] {
        let found = bitmaps(&mut client, node);
        assert_eq!(found[0]["count"], count, "{node}");
    }
    program.stop();
}

#[test]
fn bitmap_stays_with_a_node_that_is_reopened_or_gets_a_filter_or_another_size() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = filtered(&folder, "");
    client.execute(&format!("block-dirty-bitmap-add {NEW}=b"));
    assert_eq!(guest.status_of(0, OUT, 0, 1), 0);
    client.reopen(
        "driver=file node-name=d filename=disk.img cache.direct=false cache.no-flush=true
         driver=raw node-name=disk file=d",
    );
    assert_eq!(dirty_blocks(&mut client, "b"), 1);
    assert_eq!(guest.status_of(0, OUT, 8, 1), 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 2);
    let size = (BLOCKS + 3) * BLOCK as u64;
    client.execute(&format!("block_resize node-name=d size={size}"));
    assert_eq!(dirty_blocks(&mut client, "b"), 5, "the new end is dirty");
    client.execute("block-dirty-bitmap-disable node=d name=b");
    assert_eq!(guest.status_of(0, OUT, 16, 1), 0);
    assert_eq!(dirty_blocks(&mut client, "b"), 5, "it does not record");
    program.stop();
}

/// Another program may write to a disk while its node is inactive.
#[test]
fn bitmaps_of_a_node_that_was_inactive_are_inconsistent() {
    let line = "--blockdev file,node-name=d,filename=disk,cache.direct=off";
    let (_folder, program, mut client) = start_with_disk(line);
    client.execute("block-dirty-bitmap-add node=d name=b");
    assert_eq!(bitmaps(&mut client, "d")[0]["recording"], true);
    client.execute(
        "blockdev-set-active node-name=d active=false
         blockdev-set-active node-name=d active=true",
    );
    let after = bitmaps(&mut client, "d");
    assert_eq!(after[0]["inconsistent"], true, "{after:?}");
    client.error_of("block-dirty-bitmap-clear node=d name=b");
    client.execute("block-dirty-bitmap-remove node=d name=b");
    program.stop();
}
