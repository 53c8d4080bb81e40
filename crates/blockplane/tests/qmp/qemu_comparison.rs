//! A script that was written for qemu-storage-daemon, run against it and against us.
//!
//! Every answer has the same form. Where values differ, it is meant: each difference is listed here,
//! and in docs/qmp.md. The installed version is compared with; 7.2, 10.0 and 11.1 give the same result. A command at which a version
//! crashes is left out of both scripts, and [reported](test_support::report) as a part that does not run.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::MONITOR;
use crate::client::{Client, command};
use crate::process::{Folder, Process, words};

/// Versions of qemu-storage-daemon that end with SIGSEGV when the node of a vhost-user-blk export is resized while no front-end
/// is connected.
const CRASH_AT_RESIZE: [&str; 2] = ["10.0.", "11.1."];

/// The resize of an exported node.
const RESIZE_OF_EXPORTED: &str = "block_resize node-name=d size=4194304";

/// The script, without what this version of qemu-storage-daemon does not survive.
fn script_for(version: &str) -> Vec<(String, Value)> {
    let mut script = script();
    if CRASH_AT_RESIZE
        .iter()
        .any(|crash| version.starts_with(crash))
    {
        script = script.replace(RESIZE_OF_EXPORTED, "");
        test_support::report::not_run(&format!(
            "a part: {RESIZE_OF_EXPORTED} of an exported node, at which qemu-storage-daemon {version} crashes"
        ));
    }
    let lines = script.lines().filter(|line| !line.is_empty());
    lines.map(command).collect()
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

/// Commands in this order. What is exported has a whole number of blocks for direct I/O, also where it cannot be resized then.
fn script() -> String {
    let disk = "options.0.driver=file options.0.node-name=d options.0.filename=disk";
    let property = "path=/objects/io0 property";
    let socket = "backend.type=socket backend.data.addr.type=unix backend.data.addr.data.path";
    let export = "type=vhost-user-blk writable=true addr.type=unix addr.path=e.sock";
    format!(
        "qmp_capabilities
nope
query-version x=1
object-add qom-type=iothread id=io0 poll-max-ns=1000
object-add qom-type=iothread id=io0
object-add qom-type=iothread
object-add qom-type=nope id=x
object-add qom-type=iothread id=y foo=1
object-add qom-type=iothread id=y poll-max-ns=x
object-add qom-type=iothread id=y poll-max-ns=-1
qom-list path=/objects
qom-list path=/nope
qom-get {property}=poll-max-ns
qom-get {property}=aio-max-batch
qom-get {property}=type
qom-get {property}=nope
qom-get path=/objects property=io0
qom-set {property}=poll-max-ns value=5
qom-get {property}=poll-max-ns
qom-set {property}=poll-max-ns value=-5
qom-set {property}=poll-max-ns value=a
qom-list-properties typename=nope
object-del id=nope
blockdev-add driver=file node-name=d filename=disk
blockdev-add driver=null-co node-name=n
blockdev-add driver=null-co node-name=small size=65536
blockdev-add driver=null-co node-name=n
blockdev-add driver=null-co
blockdev-add node-name=m
blockdev-add driver=file node-name=m
blockdev-add driver=null-co node-name=m foo=1
blockdev-add driver=null-co node-name=m size=x
blockdev-add driver=null-co node-name=m cache.foo=true
blockdev-add driver=raw node-name=r file=n
blockdev-add driver=raw node-name=r2 file=nope
blockdev-add driver=raw node-name=r3 file.driver=null-co file.node-name=i
query-named-block-nodes
query-named-block-nodes flat=true
query-block
block_resize node-name=d size=2097152
block_resize node-name=d size=1000
query-named-block-nodes
block_resize device=d size=1048576
block_resize size=1048576
block_resize node-name=d
block_resize node-name=nope size=1
block_resize device=nope node-name=d size=1048576
block_resize node-name=d size=-1
block_resize node-name=d size=x
block_resize node-name=d size=9223372036854775807
block_resize node-name=d size=9223372036854775808
block_resize node-name=n size=65536
blockdev-add driver=raw node-name=part file=d offset=512 size=512
block_resize node-name=part size=512
blockdev-del node-name=part
blockdev-add driver=raw node-name=part file=d offset=512
block_resize node-name=part size=2097152
block_resize node-name=part size=9223372035781033984
blockdev-del node-name=part
blockdev-del node-name=n
blockdev-del node-name=i
blockdev-del node-name=nope
block_resize node-name=d size=3145728
block-export-add id=e node-name=d {export}
block-export-add id=e node-name=n {export}
block-export-add id=f node-name=nope {export}
block-export-add type=nope id=f node-name=n
block-export-add type=vhost-user-blk id=f node-name=n
query-block-exports
{RESIZE_OF_EXPORTED}
blockdev-reopen {disk} options.0.cache.direct=true options.0.cache.no-flush=true
query-named-block-nodes
blockdev-reopen {disk}
query-named-block-nodes
blockdev-reopen {disk} options.0.read-only=true
blockdev-reopen {disk} options.0.filename=nope
blockdev-reopen {disk} options.0.driver=host_device
blockdev-reopen {disk} options.0.node-name=nope
blockdev-reopen {disk} options.0.x=true
blockdev-reopen options.0.driver=file options.0.filename=disk
blockdev-reopen options.0.node-name=d
blockdev-reopen options.0=1
blockdev-reopen
blockdev-reopen options.0.driver=null-co options.0.node-name=small options.0.size=1048576
query-named-block-nodes
blockdev-del node-name=d
block-export-del id=nope
block-export-del id=e mode=nope
block-export-del id=e
query-block-exports
blockdev-del node-name=r
blockdev-del node-name=r3
blockdev-del node-name=i
blockdev-del node-name=n
block_resize node-name=d size=512
query-named-block-nodes
blockdev-del node-name=d
object-del id=io0
query-chardev
chardev-add id=x {socket}=other
chardev-add id=x {socket}=other
chardev-add id=y {socket}=nope backend.data.server=false
chardev-add id=y {socket}=z backend.data.server=false backend.data.wait=true
chardev-add id=y {socket}=z backend.data.foo=true
chardev-add id=y backend.type=socket backend.data={{}}
chardev-change id=x {socket}=another
chardev-change id=c {socket}=z
chardev-change id=nope {socket}=z
chardev-send-break id=c
chardev-send-break id=nope
chardev-remove id=c
chardev-remove id=x
chardev-remove id=nope
query-chardev
quit"
    )
}

/// The answers of a program to a script, at whose end it ends with status 0.
fn answers(folder: &Folder, mut program: Process, script: &[(String, Value)]) -> Vec<Value> {
    folder.image("disk", 1 << 20);
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
pub fn assert_same_answers(script: impl Fn(&str) -> Vec<(String, Value)>) {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let version = their_version();
    let script = script(&version);
    let folder = Folder::new();
    let program = Process::spawn_qemu_storage_daemon(&folder, MONITOR);
    let theirs = answers(&folder, program, &script);
    let folder = Folder::new();
    let program = Process::spawn(folder.command(words(MONITOR)));
    let ours = answers(&folder, program, &script);
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
