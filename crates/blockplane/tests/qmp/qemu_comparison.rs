//! A script that was written for qemu-storage-daemon, run against it and against us.
//!
//! Every answer has the same form. Where values differ, it is meant: each difference is listed here,
//! and in docs/qmp.md. The installed version is compared with; 7.2, 10.0 and 11.1 give the same result. A command at which a version
//! crashes is left out of both scripts, and [reported](test_report) as a part that does not run.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::MONITOR;
use crate::client::Client;
use crate::process::{Folder, Process, words};

/// Versions of qemu-storage-daemon that end with SIGSEGV when the node of a vhost-user-blk export is resized while no front-end
/// is connected.
const CRASH_AT_RESIZE: [&str; 2] = ["10.0.", "11.1."];

/// The script, without what this version of qemu-storage-daemon does not survive.
fn script_for(version: &str) -> Vec<(&'static str, Value)> {
    let mut script = script();
    if CRASH_AT_RESIZE
        .iter()
        .any(|crash| version.starts_with(crash))
    {
        let exported = resize_of_exported();
        let at = script.iter().position(|command| *command == exported);
        let (command, arguments) = script.remove(at.unwrap());
        test_support::report::not_run(&format!(
            "a part: {command} {arguments} of an exported node, at which qemu-storage-daemon {version} crashes"
        ));
    }
    script
}

/// The version of qemu-storage-daemon: its first line is `qemu-storage-daemon version 7.2.22 (…)`.
fn their_version() -> String {
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--version").stdin(Stdio::null());
    let text = Process::spawn(command).ended().stdout;
    let version = text.strip_prefix("qemu-storage-daemon version ");
    let version = version.and_then(|rest| rest.split_whitespace().next());
    version.unwrap_or_else(|| panic!("{text}")).to_owned()
}

fn resize_of_exported() -> (&'static str, Value) {
    ("block_resize", json!({"node-name": "d", "size": 4 << 20}))
}

/// Commands with their arguments, in this order.
fn script() -> Vec<(&'static str, Value)> {
    let export = |id: &str, node: &str| {
        json!({"type": "vhost-user-blk", "id": id, "node-name": node, "writable": true,
            "addr": {"type": "unix", "path": "e.sock"}})
    };
    let chardev = |id: &str, path: &str, more: Value| {
        let mut data = json!({"addr": {"type": "unix", "data": {"path": path}}});
        for (key, value) in more.as_object().unwrap() {
            data[key] = value.clone();
        }
        json!({"id": id, "backend": {"type": "socket", "data": data}})
    };
    let reopened = |changes: Value| {
        let mut options = json!({"driver": "file", "node-name": "d", "filename": "disk"});
        for (key, value) in changes.as_object().unwrap() {
            options[key] = value.clone();
        }
        json!({"options": [options]})
    };
    let property = |property: &str| json!({"path": "/objects/io0", "property": property});
    let set =
        |value: Value| json!({"path": "/objects/io0", "property": "poll-max-ns", "value": value});
    vec![
        ("qmp_capabilities", json!({})),
        ("nope", json!({})),
        ("query-version", json!({"x": 1})),
        (
            "object-add",
            json!({"qom-type": "iothread", "id": "io0", "poll-max-ns": 1000}),
        ),
        ("object-add", json!({"qom-type": "iothread", "id": "io0"})),
        ("object-add", json!({"qom-type": "iothread"})),
        ("object-add", json!({"qom-type": "nope", "id": "x"})),
        (
            "object-add",
            json!({"qom-type": "iothread", "id": "y", "foo": 1}),
        ),
        (
            "object-add",
            json!({"qom-type": "iothread", "id": "y", "poll-max-ns": "x"}),
        ),
        (
            "object-add",
            json!({"qom-type": "iothread", "id": "y", "poll-max-ns": -1}),
        ),
        ("qom-list", json!({"path": "/objects"})),
        ("qom-list", json!({"path": "/nope"})),
        ("qom-get", property("poll-max-ns")),
        ("qom-get", property("aio-max-batch")),
        ("qom-get", property("type")),
        ("qom-get", property("nope")),
        ("qom-get", json!({"path": "/objects", "property": "io0"})),
        ("qom-set", set(json!(5))),
        ("qom-get", property("poll-max-ns")),
        ("qom-set", set(json!(-5))),
        ("qom-set", set(json!("a"))),
        ("qom-list-properties", json!({"typename": "nope"})),
        ("object-del", json!({"id": "nope"})),
        (
            "blockdev-add",
            json!({"driver": "file", "node-name": "d", "filename": "disk"}),
        ),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "n"}),
        ),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "small", "size": 65536}),
        ),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "n"}),
        ),
        ("blockdev-add", json!({"driver": "null-co"})),
        ("blockdev-add", json!({"node-name": "m"})),
        ("blockdev-add", json!({"driver": "file", "node-name": "m"})),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "m", "foo": 1}),
        ),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "m", "size": "x"}),
        ),
        (
            "blockdev-add",
            json!({"driver": "null-co", "node-name": "m", "cache": {"foo": true}}),
        ),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "r", "file": "n"}),
        ),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "r2", "file": "nope"}),
        ),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "r3", "file": {"driver": "null-co", "node-name": "i"}}),
        ),
        ("query-named-block-nodes", json!({})),
        ("query-named-block-nodes", json!({"flat": true})),
        ("query-block", json!({})),
        ("block_resize", json!({"node-name": "d", "size": 2 << 20})),
        ("block_resize", json!({"node-name": "d", "size": 1000})),
        ("query-named-block-nodes", json!({})),
        ("block_resize", json!({"device": "d", "size": 1 << 20})),
        ("block_resize", json!({"size": 1 << 20})),
        ("block_resize", json!({"node-name": "d"})),
        ("block_resize", json!({"node-name": "nope", "size": 1})),
        (
            "block_resize",
            json!({"device": "nope", "node-name": "d", "size": 1 << 20}),
        ),
        ("block_resize", json!({"node-name": "d", "size": -1})),
        ("block_resize", json!({"node-name": "d", "size": "x"})),
        ("block_resize", json!({"node-name": "d", "size": i64::MAX})),
        (
            "block_resize",
            json!({"node-name": "d", "size": 1_u64 << 63}),
        ),
        ("block_resize", json!({"node-name": "n", "size": 65536})),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "part", "file": "d", "offset": 512, "size": 512}),
        ),
        ("block_resize", json!({"node-name": "part", "size": 512})),
        ("blockdev-del", json!({"node-name": "part"})),
        (
            "blockdev-add",
            json!({"driver": "raw", "node-name": "part", "file": "d", "offset": 512}),
        ),
        (
            "block_resize",
            json!({"node-name": "part", "size": 2 << 20}),
        ),
        (
            "block_resize",
            json!({"node-name": "part", "size": 0x7fff_ffff_c000_0000_u64}),
        ),
        ("blockdev-del", json!({"node-name": "part"})),
        ("blockdev-del", json!({"node-name": "n"})),
        ("blockdev-del", json!({"node-name": "i"})),
        ("blockdev-del", json!({"node-name": "nope"})),
        // A whole number of blocks for direct I/O, also where the exported node cannot be resized.
        ("block_resize", json!({"node-name": "d", "size": 3 << 20})),
        ("block-export-add", export("e", "d")),
        ("block-export-add", export("e", "n")),
        ("block-export-add", export("f", "nope")),
        (
            "block-export-add",
            json!({"type": "nope", "id": "f", "node-name": "n"}),
        ),
        (
            "block-export-add",
            json!({"type": "vhost-user-blk", "id": "f", "node-name": "n"}),
        ),
        ("query-block-exports", json!({})),
        resize_of_exported(),
        (
            "blockdev-reopen",
            reopened(json!({"cache": {"direct": true, "no-flush": true}})),
        ),
        ("query-named-block-nodes", json!({})),
        ("blockdev-reopen", reopened(json!({}))),
        ("query-named-block-nodes", json!({})),
        ("blockdev-reopen", reopened(json!({"read-only": true}))),
        ("blockdev-reopen", reopened(json!({"filename": "nope"}))),
        (
            "blockdev-reopen",
            reopened(json!({"driver": "host_device"})),
        ),
        ("blockdev-reopen", reopened(json!({"node-name": "nope"}))),
        ("blockdev-reopen", reopened(json!({"x": true}))),
        (
            "blockdev-reopen",
            json!({"options": [{"driver": "file", "filename": "disk"}]}),
        ),
        ("blockdev-reopen", json!({"options": [{"node-name": "d"}]})),
        ("blockdev-reopen", json!({"options": [1]})),
        ("blockdev-reopen", json!({})),
        (
            "blockdev-reopen",
            json!({"options": [{"driver": "null-co", "node-name": "small", "size": 1 << 20}]}),
        ),
        ("query-named-block-nodes", json!({})),
        ("blockdev-del", json!({"node-name": "d"})),
        ("block-export-del", json!({"id": "nope"})),
        ("block-export-del", json!({"id": "e", "mode": "nope"})),
        ("block-export-del", json!({"id": "e"})),
        ("query-block-exports", json!({})),
        ("blockdev-del", json!({"node-name": "r"})),
        ("blockdev-del", json!({"node-name": "r3"})),
        ("blockdev-del", json!({"node-name": "i"})),
        ("blockdev-del", json!({"node-name": "n"})),
        ("block_resize", json!({"node-name": "d", "size": 512})),
        ("query-named-block-nodes", json!({})),
        ("blockdev-del", json!({"node-name": "d"})),
        ("object-del", json!({"id": "io0"})),
        ("query-chardev", json!({})),
        ("chardev-add", chardev("x", "other", json!({}))),
        ("chardev-add", chardev("x", "other", json!({}))),
        (
            "chardev-add",
            chardev("y", "nope", json!({"server": false})),
        ),
        (
            "chardev-add",
            chardev("y", "z", json!({"server": false, "wait": true})),
        ),
        ("chardev-add", chardev("y", "z", json!({"foo": true}))),
        (
            "chardev-add",
            json!({"id": "y", "backend": {"type": "socket", "data": {}}}),
        ),
        ("chardev-change", chardev("x", "another", json!({}))),
        ("chardev-change", chardev("c", "z", json!({}))),
        ("chardev-change", chardev("nope", "z", json!({}))),
        ("chardev-send-break", json!({"id": "c"})),
        ("chardev-send-break", json!({"id": "nope"})),
        ("chardev-remove", json!({"id": "c"})),
        ("chardev-remove", json!({"id": "x"})),
        ("chardev-remove", json!({"id": "nope"})),
        ("query-chardev", json!({})),
        ("quit", json!({})),
    ]
}

/// The answers of a program to a script, at whose end it ends with status 0.
fn answers(folder: &Folder, command: Command, script: &[(&'static str, Value)]) -> Vec<Value> {
    folder.image("disk", 1 << 20);
    let mut program = Process::spawn(command);
    // Theirs has one client at a time: the connection that shows that it listens is the one.
    let mut client = Client::greeted(program.connection(&folder.join("qmp")));
    let script = script.iter();
    let answers = script
        .map(|(command, arguments)| client.ask(command, arguments.clone()))
        .collect();
    assert!(client.at_end());
    assert_eq!(program.ended().code, Some(0));
    answers
}

/// Takes out of the two what differs and is meant to.
fn reconcile(theirs: &mut Value, ours: &mut Value) {
    // Ours says in addition why something is in use.
    if let (Some(text), Some(said)) = (
        theirs["error"]["desc"].as_str().map(str::to_owned),
        ours["error"]["desc"].as_str(),
    ) && said.contains(" in use") | said.contains(" not owned by ")
    {
        assert!(said.starts_with(&text), "{said}");
        ours["error"]["desc"] = text.into();
    }
    let (Some(theirs), Some(ours)) = (
        theirs["return"].as_array_mut(),
        ours["return"].as_array_mut(),
    ) else {
        return;
    };
    // Newer versions show monitors as objects.
    theirs.retain(|entry| entry["type"] != "child<monitor-qmp>");
    for (theirs, ours) in theirs.iter_mut().zip(ours) {
        // Ours says where an export listens, and how its disk does.
        if ours["type"] == "vhost-user-blk" {
            for (key, value) in [
                ("socket", json!("e.sock")),
                ("io-status", json!("ok")),
                ("waiting-requests", json!(0)),
                ("late-requests", json!(0)),
            ] {
                assert_eq!(ours[key].take(), value);
                ours.as_object_mut().unwrap().shift_remove(key);
            }
        }
        if ours.get("drv").is_none() {
            continue;
        }
        // Our nodes use direct I/O by default.
        for node in [&mut *theirs, &mut *ours] {
            assert!(node["cache"]["direct"].take().is_boolean());
        }
        // What only newer versions say; some of it is nothing that we have.
        for (name, said) in [
            ("active", json!(true)),
            ("children", ours["children"].clone()),
        ] {
            theirs.as_object_mut().unwrap().entry(name).or_insert(said);
        }
        for name in ["limits", "format-specific"] {
            theirs["image"].as_object_mut().unwrap().shift_remove(name);
        }
    }
}

/// Compares the answers to the script that is for the installed version of qemu-storage-daemon, if there is one.
pub fn assert_same_answers(script: impl Fn(&str) -> Vec<(&'static str, Value)>) {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let version = their_version();
    let script = script(&version);
    let folder = Folder::new();
    let mut command = Command::new("qemu-storage-daemon");
    command
        .args(words(MONITOR))
        .current_dir(folder.path())
        .stdin(Stdio::null());
    let theirs = answers(&folder, command, &script);
    let folder = Folder::new();
    let ours = answers(&folder, folder.command(words(MONITOR)), &script);
    let mut differences = Vec::new();
    for (((command, arguments), mut theirs), mut ours) in script.iter().zip(theirs).zip(ours) {
        reconcile(&mut theirs, &mut ours);
        if ours != theirs {
            differences.push(format!("{command} {arguments}:\n  {ours}, not\n  {theirs}"));
        }
    }
    assert!(
        differences.is_empty(),
        "qemu-storage-daemon {version}:\n{}",
        differences.join("\n")
    );
}

#[test]
fn replies_match_qemu_storage_daemon() {
    assert_same_answers(script_for);
}
