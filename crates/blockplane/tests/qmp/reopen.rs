//! Nodes are reopened with other options while guests use them. Image locks are never released meanwhile.

use std::os::unix::fs::MetadataExt;

use serde_json::json;
use test_support::lock_contender::LockContender;
use test_support::loop_device::LoopDevice;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, OUT, RequestDriver, SLOTS};
use crate::{MIB, start_with_disk, start_with_images};

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev raw,node-name=tail,file=d,offset=4096 \
    --export vhost-user-blk,id=e,node-name=tail,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2";

/// The options of `d`.
const FILE: &str = "driver=file node-name=d filename=disk";

#[test]
fn reopening_a_disk_does_not_disturb_its_guest() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    // Options, and whether they say direct I/O and no flushes.
    let ways = [
        ("cache.direct=false", Some(false), false),
        ("cache.direct=true aio=native", Some(true), false),
        (
            "cache.direct=false cache.no-flush=true discard=unmap",
            Some(false),
            true,
        ),
        ("cache.direct=true aio=threads", Some(true), false),
        ("aio=io_uring", None, false),
    ];
    for round in 0..100_usize {
        let byte = u8::try_from(round + 1).unwrap();
        for queue in [0, 1] {
            let first = u64::from(queue) * SLOTS as u64;
            guest.ask_all(queue, OUT, (first..).map(|block| (block, byte)).take(SLOTS));
        }
        let (way, direct, no_flush) = ways[round % ways.len()];
        client.reopen(&format!("{FILE} {way}"));
        for queue in [0, 1] {
            assert_eq!(guest.watch_all(queue), [0; SLOTS], "{way}");
            assert_eq!(
                guest.read(queue, u64::from(queue) * SLOTS as u64),
                [byte; BLOCK],
                "{way}"
            );
        }
        let cache = client.node("d")["cache"].take();
        assert_eq!(cache["no-flush"], no_flush);
        if let Some(direct) = direct {
            assert_eq!(cache["direct"], direct);
        }
    }
    // Old openings are gone, and their descriptors.
    let disk = folder.join("disk").canonicalize().unwrap();
    let open = program.open_files();
    assert_eq!(open.iter().filter(|path| **path == disk).count(), 1);
    // It is still locked, and still grows.
    let locked = client.error_of("blockdev-add driver=file node-name=other filename=disk");
    assert!(locked.contains("lock"), "{locked}");
    client.execute("block_resize node-name=d size=2097152");
    assert_eq!(guest.capacity(), 2 * MIB - 4096);
    guest.request(0, OUT, 2 * MIB / BLOCK as u64 - 2, 1);
    program.stop();
}

/// Also what a node in front of it writes.
#[test]
fn zero_detection_is_turned_on_and_off_under_a_guest() {
    const HALF: u64 = MIB / 2;
    let (folder, program, mut client) = start_with_disk(LINE);
    let path = folder.join("disk");
    let allocated = || {
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks() * 512
    };
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    let mut write_half = |byte| {
        for block in 0..HALF / BLOCK as u64 {
            guest.request(0, OUT, block, byte);
        }
    };
    for mode in ["unmap", "off", "unmap"] {
        client.reopen(&format!("{FILE} discard=unmap detect-zeroes={mode}"));
        assert_eq!(client.node("d")["detect_zeroes"], mode);
        assert_eq!(client.node("tail")["detect_zeroes"], "off");
        write_half(1);
        assert!(allocated() >= HALF);
        write_half(0);
        assert_eq!(allocated() < HALF / 2, mode == "unmap", "{mode}");
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }
    program.stop();
}

#[test]
fn nodes_are_reopened_all_or_none_and_read_only_without_writers() {
    let (folder, program, mut client) = start_with_disk(LINE);
    for second in [
        "driver=raw node-name=tail file=d offset=8192",
        "driver=file node-name=d filename=nope",
    ] {
        let text = client.reopen_error(&format!("{FILE} cache.direct=false\n{second}"));
        assert!(text.starts_with("Cannot change the option"), "{text}");
        assert_eq!(client.node("d")["cache"]["direct"], true);
    }
    client.reopen("");
    let read_only = format!("{FILE} read-only=true");
    assert_eq!(
        client.reopen_error(&read_only),
        "Read-only block node 'tail' cannot support read-write users"
    );
    assert_eq!(client.node("d")["ro"], false);
    client.execute("block-export-del id=e");
    client.reopen(&read_only);
    assert_eq!(client.node("d")["ro"], true);
    assert_eq!(client.node("tail")["ro"], true);
    client.reopen(FILE);
    assert_eq!(client.node("tail")["ro"], false);
    client.execute(
        "block-export-add type=vhost-user-blk id=e node-name=tail writable=true addr.type=unix addr.path=e.sock",
    );
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    program.stop();
}

/// One of the guests writes parts of the other node's blocks, the other one whole blocks: both cannot go over.
#[test]
fn refused_reopening_leaves_the_blocks_of_another_node_to_others() {
    let Some(disk) = LoopDevice::new(MIB, 4096) else {
        return;
    };
    let line = "--blockdev file,node-name=d,filename=disk --blockdev raw,node-name=w,file=d";
    let (_folder, program, mut client) = start_with_images(&["disk"], line);
    let other = json!({"driver": "host_device", "node-name": "t", "filename": disk.path});
    client.done("blockdev-add", other);
    let export = |id: &str, node: &str, block_bytes: u32| {
        json!({
            "type": "vhost-user-blk", "id": id, "node-name": node, "writable": true,
            "logical-block-size": block_bytes, "addr": {"type": "unix", "path": id},
        })
    };
    client.done("block-export-add", export("small", "w", 512));
    client.done("block-export-add", export("large", "w", 4096));
    let refused = client.reopen_error("driver=raw node-name=w file=t");
    assert!(refused.contains("another logical block size"), "{refused}");
    client.done("block-export-add", export("e", "t", 4096));
    program.stop();
}

/// Its guest would see another disk, and what is known of this one, such as its bitmaps, would be of the other one.
#[test]
fn another_file_that_has_the_name_meanwhile_is_not_opened() {
    let (folder, program, mut client) = start_with_disk(LINE);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    guest.request(0, OUT, 0, 7);
    std::fs::rename(folder.join("disk"), folder.join("old")).unwrap();
    folder.image("disk", MIB);
    let error = client.reopen_error(FILE);
    assert!(error.contains("no longer the file"), "{error}");
    assert_eq!(guest.read(0, 0), [7; BLOCK]);
    std::fs::rename(folder.join("old"), folder.join("disk")).unwrap();
    client.reopen(&format!("{FILE} cache.direct=false"));
    assert_eq!(guest.read(0, 0), [7; BLOCK]);
    program.stop();
}

const ROUNDS: usize = 200;

/// A disk that a guest may write, one without a user, and one without a lock.
const LOCKS: &str = "--blockdev file,node-name=disk,filename=disk \
    --blockdev file,node-name=spare,filename=spare \
    --blockdev file,node-name=shared,filename=shared,locking=off \
    --export vhost-user-blk,id=e,node-name=disk,addr.type=unix,addr.path=e.sock,writable=on";

fn start_with_locks() -> (Folder, Process, Client) {
    start_with_images(&["disk", "spare", "shared"], LOCKS)
}

#[test]
fn reopening_never_releases_the_image_lock() {
    let (folder, program, mut client) = start_with_locks();
    // Readers have less of a lock than writers, and none of that is ever free.
    let of_disk = [
        "cache.direct=false",
        "cache.direct=true aio=native",
        "aio=threads",
    ];
    let of_spare = ["read-only=true", "read-only=false", "aio=threads"];
    for (name, ways) in [("disk", of_disk), ("spare", of_spare)] {
        let contender = LockContender::for_image(&folder.join(name));
        for round in 0..ROUNDS {
            let way = ways[round % ways.len()];
            client.reopen(&format!(
                "driver=file node-name={name} filename={name} {way}"
            ));
            contender.got_nothing();
        }
        contender.has_tried_again();
    }
    program.stop();
}

#[test]
fn failed_reopening_of_several_disks_never_releases_the_image_lock() {
    let (folder, program, mut client) = start_with_locks();
    // Another process uses this image.
    let other = "--blockdev file,node-name=shared,filename=shared --chardev socket,id=c,path=other,server=on,wait=off --monitor chardev=c";
    let other = folder.start(other, "other");
    let disk = LockContender::for_image(&folder.join("disk"));
    // Its lock has gone to the new opening when the second one cannot have its own.
    let both = "driver=file node-name=disk filename=disk aio=threads
                driver=file node-name=shared filename=shared locking=on";
    for _ in 0..ROUNDS {
        let text = client.reopen_error(both);
        assert!(text.contains("shared") && text.contains("lock"), "{text}");
        disk.got_nothing();
    }
    disk.has_tried_again();
    drop(disk);
    other.stop();
    client.reopen(both);
    program.stop();
}
