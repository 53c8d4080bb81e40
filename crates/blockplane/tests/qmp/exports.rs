//! Exports are added and removed, with and without front-ends.

use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::guest::{Guest, IN};
use crate::process::{Folder, Process};
use crate::start;

const DISK: &str = "--blockdev null-co,node-name=d,size=1M,read-zeroes=on";

fn export(id: &str, node: &str) -> Value {
    json!({"type": "vhost-user-blk", "id": id, "node-name": node,
        "addr": {"type": "unix", "path": format!("{id}.sock")}})
}

fn exports(client: &mut Client) -> Value {
    client.done("query-block-exports", json!({}))
}

#[test]
fn an_export_is_added_served_and_removed() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, DISK);
    client.done("block-export-add", export("e", "d"));
    let shown = json!([{"node-name": "d", "shutting-down": false, "type": "vhost-user-blk",
        "id": "e", "socket": "e.sock", "io-status": "ok", "waiting-requests": 0, "late-requests": 0}]);
    assert_eq!(exports(&mut client), shown);
    let used = client.fails("blockdev-del", json!({"node-name": "d"}));
    assert_eq!(used, "Node d is in use by export 'e'");

    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    client.event("BLOCK_EXPORT_CONNECTED", "e");
    guest.request(0, IN, 3, 0);
    drop(guest);
    client.event("BLOCK_EXPORT_DISCONNECTED", "e");

    client.done("block-export-del", json!({"id": "e"}));
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert_eq!(exports(&mut client), json!([]));
    assert!(!folder.has("e.sock"));
    client.done("blockdev-del", json!({"node-name": "d"}));
    program.stop();
}

#[test]
fn export_del_safe_refuses_a_connected_front_end_and_hard_drops_it() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, DISK);
    client.done("block-export-add", export("e", "d"));
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    for arguments in [json!({"id": "e"}), json!({"id": "e", "mode": "safe"})] {
        let used = client.fails("block-export-del", arguments);
        assert!(used.starts_with("export 'e' still in use"), "{used}");
    }
    guest.request(0, IN, 3, 0);
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert_eq!(exports(&mut client), json!([]));
    assert!(UnixStream::connect(folder.join("e.sock")).is_err());
    // The name is free again.
    client.done("block-export-add", export("e", "d"));
    program.stop();
}

/// An export that is removed while a request of its guest is in flight.
fn draining(folder: &Folder) -> (Process, Client, Guest) {
    let slow = "--blockdev null-co,node-name=d,size=1M,latency-ns=3000000000";
    let (program, mut client) = start(folder, slow);
    client.done("block-export-add", export("e", "d"));
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.add(0, 0, IN, 0, 0);
    guest.submit(0);
    // A request that is only available may stay in the ring.
    eventually("the request is admitted", || {
        client.done("query-blockstats", json!({}))[0]["queues"][0]["depth"] == 1
    });
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    (program, client, guest)
}

#[test]
fn draining_export_is_shown_and_does_not_block_commands() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = draining(&folder);
    assert_eq!(exports(&mut client)[0]["shutting-down"], true);
    let again = client.fails("block-export-del", json!({"id": "e", "mode": "hard"}));
    assert_eq!(again, "Export 'e' is already shutting down");
    assert!(
        client
            .fails("blockdev-del", json!({"node-name": "d"}))
            .contains("in use")
    );
    assert!(
        client
            .fails("block-export-add", export("e", "d"))
            .contains("already in use")
    );
    client.event("BLOCK_EXPORT_DELETED", "e");
    assert!(guest.is_answered(0, 0), "it was in flight");
    program.stop();
}

#[test]
fn quit_waits_for_a_draining_export() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = draining(&folder);
    client.done("quit", json!({}));
    program.ended().assert_success();
    assert!(guest.is_answered(0, 0));
}

#[test]
fn failed_export_leaves_nothing() {
    let folder = Folder::new();
    let line = format!("{DISK} --blockdev null-co,node-name=ro,read-only=on");
    let (program, mut client) = start(&folder, &line);
    client.done("block-export-add", export("e", "d"));
    let with = |id: &str, node: &str, key: &str, value: Value| {
        let mut options = export(id, node);
        options[key] = value;
        options
    };
    for (options, reason) in [
        (export("e", "d"), "Block export id 'e' is already in use"),
        (
            export("f", "nope"),
            "Cannot find device='' nor node-name='nope'",
        ),
        (
            with("f", "d", "iothread", json!("nope")),
            "iothread \"nope\" not found",
        ),
        (
            with("f", "d", "type", json!("nope")),
            "Parameter 'type' does not accept value 'nope'",
        ),
        (
            with("f", "d", "type", json!("nbd")),
            "Parameter 'addr' is unexpected",
        ),
        (
            json!({"type": "nbd", "id": "f", "node-name": "d"}),
            "NBD server not running",
        ),
        (
            with("f", "d", "addr", json!({"type": "unix"})),
            "Parameter 'addr.path' is missing",
        ),
        (
            with("f", "d", "addr", json!({"type": "unix", "path": "e.sock"})),
            "already listens",
        ),
        (
            with("f", "d", "num-queues", json!(0)),
            "num-queues value must be in range [1, 256]",
        ),
        (with("f", "d", "x", json!(0)), "Parameter 'x' is unexpected"),
        (with("f", "ro", "writable", json!(true)), "read-only"),
    ] {
        let text = client.fails("block-export-add", options);
        assert!(text.contains(reason), "{text}");
    }
    let gone = client.fails("block-export-del", json!({"id": "nope"}));
    assert_eq!(gone, "Export 'nope' is not found");
    assert_eq!(exports(&mut client).as_array().unwrap().len(), 1);
    program.stop();
}

fn open_descriptors(program: &Process) -> Vec<u32> {
    let names = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).unwrap();
    let numbers = names.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Neither used nor closed: the number of a closed one would go to the next file, and a guest's writes with it.
#[test]
fn descriptors_of_the_daemon_itself_are_refused_and_stay_open() {
    let folder = Folder::new();
    folder.image("d.img", 1 << 20);
    let (program, mut client) = start(&folder, "--blockdev file,node-name=d,filename=d.img");
    let before = open_descriptors(&program);
    for number in before.iter().filter(|number| **number > 2) {
        let mut export = export("e", "d");
        export["addr"] = json!({"type": "fd", "str": number.to_string()});
        let error = client.fails("block-export-add", export);
        // (The test itself may have passed on some of its parent's.)
        let is_refused = ["was not passed to the daemon", "is not a listening"]
            .iter()
            .any(|text| error.contains(text));
        assert!(is_refused, "{error}");
    }
    assert_eq!(open_descriptors(&program), before);
    program.stop();
}
