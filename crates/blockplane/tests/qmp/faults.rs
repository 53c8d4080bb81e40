//! Fault injection: its effects on a guest, and that no injected fault lasts for ever.

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{BLOCK, FLUSH, Guest, IN, OUT};
use crate::process::{Folder, Process};
use crate::start;

const MIB: u64 = 1 << 20;

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev blkdebug,node-name=b,image=d,inject-error.0.iotype=write,inject-error.0.errno=28,inject-error.0.sector=8 \
    --export vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2";

fn started(folder: &Folder) -> (Process, Client, Guest) {
    folder.image("disk", MIB);
    let (mut program, client) = start(folder, LINE);
    let socket = folder.join("e.sock");
    program.wait_until_accepting(&socket);
    let guest = Guest::connect(&socket, 2);
    (program, client, guest)
}

fn set(client: &mut Client, rules: Value) {
    let arguments = json!({"node-name": "b", "inject-error": rules});
    client.done("x-blkdebug-set", arguments);
}

/// The status of a request.
fn status(guest: &mut Guest, kind: u32, block: u64, byte: u8) -> u8 {
    guest.ask(0, 0, kind, block, byte);
    guest.watch(0, 0);
    guest.status(0, 0)
}

#[test]
fn injected_faults_apply_to_requests_of_the_guest() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = started(&folder);
    guest.request(0, OUT, 0, 1);
    assert_eq!(status(&mut guest, OUT, 1, 1), 1);
    let event = client.wait_for_event("BLOCK_IO_ERROR");
    let event = ["node-name", "operation", "nospace", "reason"].map(|key| event[key].clone());
    let expected = json!(["b", "write", true, "No space left on device"]);
    assert_eq!(json!(event), expected);
    guest.request(0, IN, 1, 0);
    assert_eq!(guest.data(0, 0), [0; BLOCK], "nothing was written");

    set(
        &mut client,
        json!([{"iotype": "flush", "once": true}, {"iotype": "read", "action": "short"}]),
    );
    guest.request(0, OUT, 1, 2);
    assert_eq!(status(&mut guest, FLUSH, 0, 0), 1);
    guest.request(0, FLUSH, 0, 0);
    assert_eq!(status(&mut guest, IN, 1, 9), 1);
    let read = guest.data(0, 0);
    assert!(read[..512] == [2; 512] && read[512..].iter().all(|byte| *byte == 9));

    // Another opening of what is below keeps the rules; the node's own has those that it is given.
    let file = json!({"driver": "file", "node-name": "d", "filename": "disk", "aio": "threads"});
    client.done("blockdev-reopen", json!({"options": [file]}));
    assert_eq!(status(&mut guest, IN, 1, 0), 1);
    let options = json!({"driver": "blkdebug", "node-name": "b", "image": "d",
        "inject-error": [{"action": "torn", "iotype": "write", "bytes": 1024}]});
    client.done("blockdev-reopen", json!({"options": [options]}));
    guest.request(0, OUT, 1, 3);
    guest.request(0, IN, 1, 0);
    let read = guest.data(0, 0);
    assert!(read[..1024] == [3; 1024] && read[1024..].iter().all(|byte| *byte == 2));

    // Resizing what is below is resizing it.
    client.done("block_resize", json!({"node-name": "d", "size": 2 * MIB}));
    assert_eq!(guest.capacity(), 2 * MIB);
    guest.request(0, IN, MIB / BLOCK as u64, 0);

    for (arguments, words) in [
        (json!({"node-name": "nope"}), "Failed to find node"),
        (json!({"node-name": "d"}), "its driver is not 'blkdebug'"),
        (
            json!({"node-name": "b", "inject-error": [{"errno": 0}]}),
            "errno",
        ),
        (
            json!({"node-name": "b", "seed": 1}),
            "'inject-error' is missing",
        ),
    ] {
        let text = client.fails("x-blkdebug-set", arguments);
        assert!(text.contains(words), "{text}");
    }
    let nodes = client.done("query-named-block-nodes", json!({}));
    let shown = &nodes
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["node-name"] == "b");
    assert_eq!(
        shown.unwrap()["children"],
        json!([{"node-name": "d", "child": "image"}])
    );
    drop(guest);
    program.stop();
}

#[test]
fn hanging_request_does_not_block_others_or_the_shutdown() {
    let folder = Folder::new();
    let (mut program, mut client, mut guest) = started(&folder);
    let hang = || json!([{"iotype": "read", "sector": 8, "action": "hang"}]);
    set(&mut client, hang());
    guest.ask(0, 0, IN, 1, 0);
    // Its own queue goes on as well.
    for round in 0..10 {
        guest.ask(0, 1, OUT, 2, round);
        guest.watch(0, 1);
        guest.request(1, IN, 2, 0);
        assert_eq!(guest.data(1, 0), [round; BLOCK]);
    }
    assert!(!guest.is_answered(0, 0));
    // It is released, also while a command waits for it.
    client.done("x-blkdebug-set", json!({"node-name": "b"}));
    guest.wait(0, 0);
    // A queue that stops, a guest that goes, and the daemon's end wait for no disk that hangs.
    guest.ask(0, 0, IN, 1, 0);
    guest.request(1, IN, 0, 0);
    assert_eq!(guest.stop(0), 12);
    assert!(guest.is_answered(0, 0));
    guest.ask(1, 0, IN, 1, 0);
    drop(guest);
    let socket = folder.join("e.sock");
    let mut guest = Guest::connect(&socket, 2);
    guest.ask(0, 0, IN, 1, 0);
    guest.request(1, IN, 0, 0);
    program.wait_until_accepting(&socket);
    program.stop();
}
