//! Commands that wait for a disk block only their own client and commands for the same disk.

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::guest::{Guest, IN};
use crate::process::{Folder, Process};
use crate::start;
use crate::stopped_thread::StoppedThread;

const MIB: u64 = 1 << 20;

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev file,node-name=other,filename=other \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on";

/// Makes the disk's iothread hang, with a request in flight.
fn hang(guest: &mut Guest, program: &Process) -> StoppedThread {
    guest.request(0, IN, 0, 0);
    let iothread = StoppedThread::of_name(program.pid(), "IO main");
    guest.ask(0, 0, IN, 0, 0);
    iothread
}

/// Waits until another client's command uses the disk, and returns the error that other clients get then.
fn until_busy(client: &mut Client, command: &str) -> String {
    let busy = format!("Node 'd' is busy: a {command} waits");
    let export = json!({"type": "vhost-user-blk", "id": "f", "node-name": "d",
        "addr": {"type": "unix", "path": "f.sock"}});
    eventually(format_args!("a {command} is at work"), || {
        let answer = client.ask("block-export-add", export.clone());
        let Some(text) = answer["error"]["desc"].as_str() else {
            client.done("block-export-del", json!({"id": "f"}));
            return false;
        };
        assert!(text.starts_with(&busy), "{text}");
        true
    });
    busy
}

/// Sends a command while the disk's iothread hangs, and returns the reply once the iothread continues.
fn while_it_hangs(command: &str, arguments: &Value) -> Value {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", MIB);
    let (program, mut waits) = start(&folder, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let iothread = hang(&mut guest, &program);
    waits.send(command, arguments);
    // Of one client commands are answered in their order.
    waits.send("query-named-block-nodes", &json!({}));
    let mut client = Client::connect(&folder.join("qmp"));
    let busy = until_busy(&mut client, command);
    let same = json!({"node-name": "d", "size": 2 * MIB});
    for refused in [
        ("block_resize", same.clone()),
        (
            "blockdev-reopen",
            json!({"options": [{"driver": "file", "node-name": "d", "filename": "disk"}]}),
        ),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "part", "file": "d"}),
        ),
    ] {
        let text = client.fails(refused.0, refused.1);
        assert!(text.starts_with(&busy), "{}: {text}", refused.0);
    }
    // Other disks are nothing to it.
    client.done(
        "block_resize",
        json!({"node-name": "other", "size": 2 * MIB}),
    );
    client.done("blockdev-del", json!({"node-name": "other"}));
    assert_eq!(
        client.done("query-named-block-nodes", json!({}))[0]["node-name"],
        "d"
    );
    assert!(!waits.is_answered());
    iothread.resume();
    let answer = waits.answer();
    assert!(waits.answer()["return"][0]["image"].is_object());
    // It is free again.
    client.done("block_resize", same);
    drop(guest);
    program.stop();
    answer
}

#[test]
fn resize_of_a_hanging_disk_blocks_its_own_client_only() {
    let shrink = json!({"node-name": "d", "size": MIB / 2});
    assert_eq!(
        while_it_hangs("block_resize", &shrink),
        json!({"return": {}})
    );
}

#[test]
fn reopening_a_hanging_disk_blocks_its_own_client_only() {
    let node = json!({"driver": "file", "node-name": "d", "filename": "disk", "aio": "threads"});
    let reopen = json!({"options": [node]});
    assert_eq!(
        while_it_hangs("blockdev-reopen", &reopen),
        json!({"return": {}})
    );
}

/// What waits when the end comes is done first; what is behind it hears that it will not be.
#[test]
fn shutdown_works_while_a_command_waits_for_a_disk() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", MIB);
    let (program, mut waits) = start(&folder, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let iothread = hang(&mut guest, &program);
    waits.send("block_resize", &json!({"node-name": "d", "size": MIB / 2}));
    waits.send("query-block", &json!({}));
    let mut client = Client::connect(&folder.join("qmp"));
    until_busy(&mut client, "block_resize");
    client.done("quit", json!({}));
    iothread.resume();
    assert_eq!(waits.answer(), json!({"return": {}}));
    let refused = waits.answer();
    assert_eq!(refused["error"]["desc"], "the daemon is about to end");
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(folder.join("disk").metadata().unwrap().len(), MIB / 2);
}

#[test]
fn node_with_an_inline_child_in_use_cannot_be_removed() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = "--blockdev raw,node-name=top,file.driver=file,file.node-name=inside,file.filename=disk \
        --export vhost-user-blk,id=e,node-name=inside,addr.type=unix,addr.path=e.sock,writable=on";
    let (program, mut client) = start(&folder, line);
    let top = json!({"node-name": "top"});
    let text = client.fails("blockdev-del", top.clone());
    assert_eq!(text, "Node inside is in use by export 'e'");
    client.done("block-export-del", json!({"id": "e"}));
    client.done("blockdev-del", top);
    assert_eq!(client.done("query-named-block-nodes", json!({})), json!([]));
    program.stop();
}

/// As on a server that does not answer: the thread that opens it does not get to it.
#[test]
fn opening_a_slow_disk_blocks_its_own_client_only() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", MIB);
    folder.image("slow", MIB);
    let (program, mut waits) = start(&folder, LINE);
    let mut client = Client::connect(&folder.join("qmp"));
    let node = json!({"driver": "raw", "node-name": "slow",
        "file": {"driver": "file", "node-name": "inside", "filename": "slow"}});
    let opens = StoppedThread::first_after(program.pid(), || waits.send("blockdev-add", &node));
    waits.send("query-block", &json!({}));
    // Others go on, and its names are taken.
    client.done("blockdev-del", json!({"node-name": "other"}));
    let nodes = client.done("query-named-block-nodes", json!({}));
    assert_eq!(nodes.as_array().unwrap().len(), 1);
    for name in ["slow", "inside"] {
        let same = json!({"driver": "null-co", "node-name": name});
        let text = client.fails("blockdev-add", same);
        assert_eq!(text, format!("Duplicate nodes with node-name='{name}'"));
        let part = json!({"driver": "raw", "node-name": "part", "file": name});
        let text = client.fails("blockdev-add", part);
        let busy = format!("Node '{name}' is busy: a blockdev-add waits for its disk");
        assert!(text.starts_with(&busy), "{text}");
        let anew = json!({"driver": "file", "node-name": name, "filename": "slow"});
        for (command, arguments) in [
            ("blockdev-del", json!({"node-name": name})),
            ("block_resize", json!({"node-name": name, "size": MIB})),
            ("blockdev-reopen", json!({"options": [anew]})),
        ] {
            let text = client.fails(command, arguments);
            assert!(text.starts_with(&busy), "{command}: {text}");
        }
    }
    assert!(!waits.is_answered());
    opens.resume();
    assert_eq!(waits.answer(), json!({"return": {}}));
    assert_eq!(waits.answer(), json!({"return": []}));
    let part = json!({"driver": "raw", "node-name": "part", "file": "slow"});
    client.done("blockdev-add", part);

    // One that fails leaves its name to others.
    let absent = json!({"driver": "file", "node-name": "again", "filename": "absent"});
    client.fails("blockdev-add", absent);
    client.done(
        "blockdev-add",
        json!({"driver": "null-co", "node-name": "again"}),
    );
    program.stop();
}

/// It may never be open: disks that are, are flushed and closed all the same.
#[test]
fn shutdown_works_while_a_disk_is_being_opened() {
    let slow = json!({"driver": "file", "node-name": "slow", "filename": "slow"});
    let anew = json!({"driver": "file", "node-name": "d", "filename": "disk", "aio": "threads"});
    for (command, arguments) in [
        ("blockdev-add", slow),
        ("blockdev-reopen", json!({"options": [anew]})),
    ] {
        let folder = Folder::new();
        folder.image("disk", MIB);
        folder.image("other", MIB);
        folder.image("slow", MIB);
        let (program, mut waits) = start(&folder, LINE);
        let mut client = Client::connect(&folder.join("qmp"));
        let opens = StoppedThread::first_after(program.pid(), || waits.send(command, &arguments));
        client.done("quit", json!({}));
        opens.ended_with_its_process();
        let ended = program.ended();
        assert_eq!(ended.code, Some(0), "{command}: {ended:?}");
    }
}

/// Its old opening is there meanwhile: guests go on with it, and it stays if the new one cannot be.
#[test]
fn reopening_a_slow_disk_keeps_the_old_file_in_use() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", MIB);
    let (program, mut waits) = start(&folder, LINE);
    let mut client = Client::connect(&folder.join("qmp"));
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let direct = |client: &mut Client| {
        let nodes = client.done("query-named-block-nodes", json!({}));
        let mut nodes = nodes.as_array().unwrap().iter();
        let node = nodes.find(|node| node["node-name"] == "d").unwrap();
        node["cache"]["direct"].as_bool().unwrap()
    };
    let anew = |changes: Value| {
        let mut node = json!({"driver": "file", "node-name": "d", "filename": "disk"});
        node.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        json!({"options": [node]})
    };
    let before = direct(&mut client);
    let buffered = anew(json!({"cache": {"direct": !before}}));
    for (options, answer) in [
        (
            anew(json!({"cache": {"direct": !before}, "read-only": true})),
            json!("Read-only block node 'd' cannot support read-write users"),
        ),
        (buffered, Value::Null),
    ] {
        let opens =
            StoppedThread::first_after(program.pid(), || waits.send("blockdev-reopen", &options));
        client.done(
            "block_resize",
            json!({"node-name": "other", "size": 2 * MIB}),
        );
        assert_eq!(
            until_busy(&mut client, "blockdev-reopen"),
            "Node 'd' is busy: a blockdev-reopen waits"
        );
        guest.request(0, IN, 0, 0);
        assert_eq!(direct(&mut client), before);
        assert!(!waits.is_answered());
        opens.resume();
        assert_eq!(waits.answer()["error"]["desc"], answer);
    }
    assert_eq!(direct(&mut client), !before);
    // It is free again.
    client.done("block_resize", json!({"node-name": "d", "size": 2 * MIB}));
    program.stop();
}
