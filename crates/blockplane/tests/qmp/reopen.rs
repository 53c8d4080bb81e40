//! Nodes are reopened with other options while guests use them.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{BLOCK, Guest, IN, OUT, SLOTS};
use crate::process::Folder;
use crate::start;

const MIB: u64 = 1 << 20;

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev raw,node-name=tail,file=d,offset=4096 \
    --export vhost-user-blk,id=e,node-name=tail,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2";

fn file(changes: &Value) -> Value {
    let mut options = json!({"driver": "file", "node-name": "d", "filename": "disk"});
    for (key, value) in changes.as_object().unwrap() {
        options[key] = value.clone();
    }
    options
}

fn node(client: &mut Client, name: &str) -> Value {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let mut nodes = nodes.as_array().unwrap().iter();
    nodes
        .find(|node| node["node-name"] == name)
        .unwrap()
        .clone()
}

#[test]
fn reopening_a_disk_does_not_disturb_its_guest() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, mut client) = start(&folder, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    let ways = [
        json!({"cache": {"direct": false}}),
        json!({"cache": {"direct": true}, "aio": "native"}),
        json!({"cache": {"direct": false, "no-flush": true}, "discard": "unmap"}),
        json!({"cache": {"direct": true}, "aio": "threads"}),
        json!({"aio": "io_uring"}),
    ];
    for round in 0..100_usize {
        let byte = u8::try_from(round + 1).unwrap();
        for queue in [0, 1] {
            for slot in 0..SLOTS {
                let block = (slot + queue as usize * SLOTS) as u64;
                guest.add(queue, slot, OUT, block, byte);
            }
            guest.submit(queue);
        }
        let way = &ways[round % ways.len()];
        client.done("blockdev-reopen", json!({"options": [file(way)]}));
        for queue in [0, 1] {
            for slot in 0..SLOTS {
                guest.watch(queue, slot);
                assert_eq!(guest.status(queue, slot), 0);
            }
            guest.request(queue, IN, u64::from(queue) * SLOTS as u64, 0);
            assert_eq!(guest.data(queue, 0), [byte; BLOCK], "{way}");
        }
        let shown = node(&mut client, "d")["cache"].clone();
        assert_eq!(shown["no-flush"], way["cache"]["no-flush"] == true);
        if let Some(direct) = way["cache"].get("direct") {
            assert_eq!(shown["direct"], *direct);
        }
    }
    // Old openings are gone, and their descriptors.
    let disk = folder.join("disk").canonicalize().unwrap();
    let fds = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
    let open = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    assert_eq!(open.filter(|path| *path == disk).count(), 1);
    // It is still locked, and still grows.
    let other = json!({"driver": "file", "node-name": "other", "filename": "disk"});
    let locked = client.fails("blockdev-add", other);
    assert!(locked.contains("lock"), "{locked}");
    client.done("block_resize", json!({"node-name": "d", "size": 2 * MIB}));
    assert_eq!(guest.capacity(), 2 * MIB - 4096);
    guest.request(0, OUT, 2 * MIB / BLOCK as u64 - 2, 1);
    program.stop();
}

/// Also what a node in front of it writes.
#[test]
fn zero_detection_is_turned_on_and_off_under_a_guest() {
    const HALF: u64 = MIB / 2;
    let folder = Folder::new();
    folder.image("disk", MIB);
    let path = folder.join("disk");
    let allocated = || {
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks() * 512
    };
    let (program, mut client) = start(&folder, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    let mut write_half = |byte| {
        for block in 0..HALF / BLOCK as u64 {
            guest.request(0, OUT, block, byte);
        }
    };
    for mode in ["unmap", "off", "unmap"] {
        let options = file(&json!({"discard": "unmap", "detect-zeroes": mode}));
        client.done("blockdev-reopen", json!({"options": [options]}));
        assert_eq!(node(&mut client, "d")["detect_zeroes"], mode);
        assert_eq!(node(&mut client, "tail")["detect_zeroes"], "off");
        write_half(1);
        assert!(allocated() >= HALF);
        write_half(0);
        assert_eq!(allocated() < HALF / 2, mode == "unmap", "{mode}");
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }
    program.stop();
}

#[test]
fn node_without_writers_becomes_read_only_and_writable_again() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, mut client) = start(&folder, LINE);
    let read_only = json!({"options": [file(&json!({"read-only": true}))]});
    let in_use = client.fails("blockdev-reopen", read_only.clone());
    assert_eq!(
        in_use,
        "Read-only block node 'tail' cannot support read-write users"
    );
    assert_eq!(node(&mut client, "d")["ro"], false);
    client.done("block-export-del", json!({"id": "e"}));
    client.done("blockdev-reopen", read_only);
    assert_eq!(node(&mut client, "d")["ro"], true);
    assert_eq!(node(&mut client, "tail")["ro"], true);
    client.done("blockdev-reopen", json!({"options": [file(&json!({}))]}));
    assert_eq!(node(&mut client, "tail")["ro"], false);
    let export = json!({"type": "vhost-user-blk", "id": "e", "node-name": "tail", "writable": true,
        "addr": {"type": "unix", "path": "e.sock"}});
    client.done("block-export-add", export);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    program.stop();
}

#[test]
fn reopening_several_nodes_is_atomic() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, mut client) = start(&folder, LINE);
    let buffered = file(&json!({"cache": {"direct": false}}));
    let tail = json!({"driver": "raw", "node-name": "tail", "file": "d", "offset": 8192});
    for second in [tail, file(&json!({"filename": "nope"}))] {
        let options = json!({"options": [buffered.clone(), second]});
        let text = client.fails("blockdev-reopen", options);
        assert!(text.starts_with("Cannot change the option"), "{text}");
        assert_eq!(node(&mut client, "d")["cache"]["direct"], true);
    }
    client.done("blockdev-reopen", json!({"options": []}));
    program.stop();
}
