//! Commands that wait for a disk block only their own client and commands for the same disk.

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::stopped_thread::StoppedThread;

use crate::client::{Client, arguments, reopen_arguments};
use crate::process::{Folder, Process};
use crate::request_driver::{IN, RequestDriver};
use crate::{MIB, start_with_images};

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --blockdev file,node-name=other,filename=other \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on";

/// A client whose command is going to wait, and another client.
fn started() -> (Folder, Process, [Client; 2]) {
    let (folder, program, waits) = start_with_images(&["disk", "other", "slow"], LINE);
    let client = Client::connect(&folder.join("qmp"));
    (folder, program, [waits, client])
}

/// Makes the disk's iothread hang, with a request in flight.
fn hang(guest: &mut RequestDriver, program: &Process) -> StoppedThread {
    guest.request(0, IN, 0, 0);
    let iothread = StoppedThread::of_name(program.pid(), "IO main");
    guest.ask(0, 0, IN, 0, 0);
    iothread
}

/// Waits until another client's command uses the disk, and returns the error that other clients get then.
fn until_busy(client: &mut Client, command: &str) -> String {
    let busy = format!("Node 'd' is busy: a {command} waits");
    let export = "type=vhost-user-blk id=f node-name=d addr.type=unix addr.path=f.sock";
    eventually(format_args!("a {command} is at work"), || {
        let answer = client.ask("block-export-add", arguments(export));
        let Some(text) = answer["error"]["desc"].as_str() else {
            client.execute("block-export-del id=f");
            return false;
        };
        assert!(text.starts_with(&busy), "{text}");
        true
    });
    busy
}

#[test]
fn resizing_or_reopening_a_hanging_disk_blocks_its_own_client_only() {
    let reopen = reopen_arguments("driver=file node-name=d filename=disk aio=threads");
    let shrink = json!({"node-name": "d", "size": MIB / 2});
    for (command, arguments) in [("block_resize", shrink), ("blockdev-reopen", reopen)] {
        let (folder, program, [mut waits, mut client]) = started();
        let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
        let iothread = hang(&mut guest, &program);
        waits.send(command, &arguments);
        // Of one client commands are answered in their order.
        waits.send("query-named-block-nodes", &json!({}));
        let busy = until_busy(&mut client, command);
        let same = "block_resize node-name=d size=2097152";
        let refused = client.reopen_error("driver=file node-name=d filename=disk");
        assert!(refused.starts_with(&busy), "{refused}");
        client.assert_errors(&format!(
            "{same} => {busy}
             blockdev-add driver=raw node-name=part file=d => {busy}"
        ));
        // Other disks are nothing to it.
        client.execute(
            "block_resize node-name=other size=2097152
             blockdev-del node-name=other",
        );
        let nodes = client.execute("query-named-block-nodes");
        assert_eq!(nodes[0]["node-name"], "d");
        assert!(!waits.is_answered());
        iothread.resume();
        assert_eq!(waits.answer(), json!({"return": {}}));
        assert!(waits.answer()["return"][0]["image"].is_object());
        // It is free again.
        client.execute(same);
        program.stop();
    }
}

/// What waits when the end comes is done first; what is behind it hears that it will not be.
#[test]
fn shutdown_works_while_a_command_waits_for_a_disk() {
    let (folder, program, [mut waits, mut client]) = started();
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    let iothread = hang(&mut guest, &program);
    waits.send("block_resize", &json!({"node-name": "d", "size": MIB / 2}));
    waits.send("query-block", &json!({}));
    until_busy(&mut client, "block_resize");
    client.execute("quit");
    iothread.resume();
    assert_eq!(waits.answer(), json!({"return": {}}));
    let refused = waits.answer();
    assert_eq!(refused["error"]["desc"], "the daemon is about to end");
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(folder.join("disk").metadata().unwrap().len(), MIB / 2);
}

/// As on a server that does not answer: the thread that opens it does not get to it.
#[test]
fn opening_a_slow_disk_blocks_its_own_client_only() {
    let (_folder, program, [mut waits, mut client]) = started();
    let inside = json!({"driver": "file", "node-name": "inside", "filename": "slow"});
    let node = json!({"driver": "raw", "node-name": "slow", "file": inside});
    let opens = StoppedThread::first_after(program.pid(), || waits.send("blockdev-add", &node));
    waits.send("query-block", &json!({}));
    // Others go on, and its names are taken.
    client.execute("blockdev-del node-name=other");
    let nodes = client.execute("query-named-block-nodes");
    assert_eq!(nodes.as_array().unwrap().len(), 1);
    for name in ["slow", "inside"] {
        let busy = format!("Node '{name}' is busy: a blockdev-add waits for its disk");
        client.assert_errors(&format!(
            "blockdev-add driver=null-co node-name={name} => Duplicate nodes with node-name='{name}'
             blockdev-add driver=raw node-name=part file={name} => {busy}
             blockdev-del node-name={name} => {busy}
             block_resize node-name={name} size=1048576 => {busy}"
        ));
        let anew = format!("driver=file node-name={name} filename=slow");
        let refused = client.reopen_error(&anew);
        assert!(refused.starts_with(&busy), "{refused}");
    }
    assert!(!waits.is_answered());
    opens.resume();
    assert_eq!(waits.answer(), json!({"return": {}}));
    assert_eq!(waits.answer(), json!({"return": []}));
    client.execute("blockdev-add driver=raw node-name=part file=slow");

    // One that fails leaves its name to others.
    client.error_of("blockdev-add driver=file node-name=again filename=absent");
    client.execute("blockdev-add driver=null-co node-name=again");
    program.stop();
}

/// It may never be open: disks that are, are flushed and closed all the same.
#[test]
fn shutdown_works_while_a_disk_is_being_opened() {
    let slow = json!({"driver": "file", "node-name": "slow", "filename": "slow"});
    let anew = reopen_arguments("driver=file node-name=d filename=disk aio=threads");
    for (command, arguments) in [("blockdev-add", slow), ("blockdev-reopen", anew)] {
        let (_folder, program, [mut waits, mut client]) = started();
        let opens = StoppedThread::first_after(program.pid(), || waits.send(command, &arguments));
        client.execute("quit");
        opens.ended_with_its_process();
        let ended = program.ended();
        assert_eq!(ended.code, Some(0), "{command}: {ended:?}");
    }
}

/// Its old opening is there meanwhile: guests go on with it, and it stays if the new one cannot be.
#[test]
fn reopening_a_slow_disk_keeps_the_old_file_in_use() {
    let (folder, program, [mut waits, mut client]) = started();
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    let direct = |client: &mut Client| client.node("d")["cache"]["direct"].as_bool().unwrap();
    let before = direct(&mut client);
    let anew = format!(
        "driver=file node-name=d filename=disk cache.direct={}",
        !before
    );
    for (options, answer) in [
        (
            format!("{anew} read-only=true"),
            json!("Read-only block node 'd' cannot support read-write users"),
        ),
        (anew, Value::Null),
    ] {
        let options = reopen_arguments(&options);
        let opens =
            StoppedThread::first_after(program.pid(), || waits.send("blockdev-reopen", &options));
        until_busy(&mut client, "blockdev-reopen");
        guest.request(0, IN, 0, 0);
        assert_eq!(direct(&mut client), before);
        assert!(!waits.is_answered());
        opens.resume();
        assert_eq!(waits.answer()["error"]["desc"], answer);
    }
    assert_eq!(direct(&mut client), !before);
    // It is free again.
    client.execute("block_resize node-name=d size=2097152");
    program.stop();
}
