//! `blockplane backup` and `blockplane bitmap`, with this program and with qemu-storage-daemon.

use std::io::Write;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::deadline::Deadline;

use crate::client::Client;
use crate::guest::{BLOCK, Guest, OUT};
use crate::process::{Folder, Process, ProcessOutput};
use crate::{MIB, MONITOR, assert_same_content, bitmap, start, start_with_disks};

const EXPORT: &str =
    "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";

fn printed_json(output: &ProcessOutput) -> Value {
    serde_json::from_str(output.assert_success()).unwrap()
}

/// Starts a command, and waits until its job runs: the disk is busy before.
fn start_command(folder: &Folder, client: &mut Client, line: &str) -> Process {
    let command = Process::spawn(folder.command(line.split_whitespace()));
    let deadline = Deadline::default();
    while client.done("query-jobs", json!({}))[0]["status"] != "running" {
        deadline.check("the job runs");
    }
    command
}

#[test]
fn backup_command_copies_all_and_then_what_has_changed() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 2 * MIB, EXPORT);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let first = printed_json(&folder.run("backup qmp e new.img --incremental nightly --json"));
    assert_eq!(first["kind"], "full");
    assert_eq!(first["copied"], 2 * MIB);
    assert_same_content(&folder, "disk.img", "new.img");
    guest.request(0, OUT, 3, 9);
    let second = printed_json(&folder.run("backup qmp disk new.img --incremental nightly --json"));
    assert_eq!(second["kind"], "incremental");
    assert_eq!(second["copied"], 65536);
    assert_same_content(&folder, "disk.img", "new.img");
    assert_eq!(bitmap(&mut client, "disk", "nightly")["count"], 0);
    folder
        .run("bitmap qmp disk nightly --disable")
        .assert_success();
    guest.request(0, OUT, 5, 7);
    let refused = folder.run("backup qmp disk new.img --incremental nightly");
    assert!(
        refused.stderr.contains("does not record"),
        "the write is in no bitmap: {refused:?}"
    );
    let nodes = client.done("query-named-block-nodes", json!({}));
    assert_eq!(nodes.as_array().unwrap().len(), 2, "the target is closed");
    program.stop();
}

#[test]
fn backup_command_leaves_files_of_others_and_says_what_to_do() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, EXPORT);
    folder.image("mine.img", MIB);
    for (line, reason) in [
        ("backup qmp disk mine.img", "exists"),
        ("backup qmp missing new.img", "the nodes are: disk, copy"),
        ("backup qmp disk no/folder.img", "create"),
        ("backup qmp disk /dev/null", "neither a file"),
        ("mirror qmp disk qmp", "neither a file"),
        (
            "backup qmp disk new.img --incremental b --persistent",
            "bitmap-file=PATH",
        ),
    ] {
        let output = folder.run(line);
        assert!(
            output.code == Some(1) && output.stderr.contains(reason),
            "{output:?}"
        );
        assert!(!folder.join("new.img").exists(), "{line}");
    }
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let output = folder.run("backup qmp disk lost.img --incremental b");
    assert!(
        output.stderr.contains("begin with a full backup"),
        "{output:?}"
    );
    program.stop();
}

/// It was killed, say: its job and its target's node are still there.
#[test]
fn command_that_is_refused_names_the_job_that_another_one_has_left() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "backup qmp disk new.img --speed 1M";
    let command = start_command(&folder, &mut client, line);
    command.signal(Signal::KILL);
    command.ended();
    let id = client.done("query-jobs", json!({}))[0]["id"].clone();
    let refused = folder.run("mirror qmp disk other.img");
    let advice = format!("job-cancel id={}", id.as_str().unwrap());
    assert!(refused.stderr.contains(&advice), "{refused:?}");
    let refused = folder.run("mirror qmp disk copy");
    assert!(refused.stderr.contains("--to-node"), "{refused:?}");
    let longest = "n".repeat(26);
    client.done(
        "blockdev-add",
        json!({"driver": "null-co", "node-name": longest}),
    );
    let refused = folder.run(&format!("mirror qmp {longest} other.img"));
    assert!(refused.stderr.contains("--node-name"), "{refused:?}");
    assert!(!folder.join("other.img").exists());
    client.done("job-cancel", json!({"id": id}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let refused = folder.run("backup qmp disk new.img --incremental b");
    let advice = format!("blockdev-del node-name={}", id.as_str().unwrap());
    assert!(refused.stderr.contains(&advice), "{refused:?}");
    client.done("blockdev-del", json!({"node-name": id}));
    program.stop();
}

#[test]
fn interrupted_backup_command_cancels_its_job_and_removes_what_it_made() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "backup qmp disk new.img --incremental b --speed 1";
    let command = start_command(&folder, &mut client, line);
    command.signal(Signal::INT);
    let output = command.ended();
    assert!(output.stderr.contains("interrupted"), "{output:?}");
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    assert!(!folder.join("new.img").exists());
    let bitmaps = folder.run("bitmap qmp");
    assert!(
        bitmaps.assert_success().contains("No bitmaps"),
        "{bitmaps:?}"
    );
    program.stop();
}

#[test]
fn bitmap_command_changes_bitmaps_and_lists_them() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, EXPORT);
    folder
        .run("bitmap qmp e b --add --granularity 4k")
        .assert_success();
    folder.run("bitmap qmp disk other --add").assert_success();
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 3, 9);
    let listed = printed_json(&folder.run("bitmap qmp --json"));
    assert_eq!(listed["copy"], json!([]));
    let counts = listed["disk"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bitmap| &bitmap["count"]);
    assert!(counts.eq([&json!(65536), &json!(4096)]), "{listed}");
    folder.run("bitmap qmp disk b --clear").assert_success();
    folder.run("bitmap qmp disk b --disable").assert_success();
    let found = bitmap(&mut client, "disk", "b");
    assert_eq!(
        (&found["count"], &found["recording"]),
        (&json!(0), &json!(false))
    );
    folder.run("bitmap qmp disk b --enable").assert_success();
    let table = folder.run("bitmap qmp disk b --merge other");
    assert!(table.assert_success().contains("recording"), "{table:?}");
    folder
        .run("bitmap qmp disk other --remove")
        .assert_success();
    assert_eq!(
        printed_json(&folder.run("bitmap qmp disk --json"))["disk"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let output = folder.run("bitmap qmp disk missing --clear");
    assert!(output.stderr.contains("missing"), "{output:?}");
    program.stop();
}

#[test]
fn backup_command_works_with_qemu_storage_daemon() {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let folder = Folder::new();
    let mut disk = std::fs::File::create(folder.join("disk.img")).unwrap();
    disk.write_all(&vec![7; 1 << 20]).unwrap();
    let mut command = std::process::Command::new("qemu-storage-daemon");
    command
        .args("--blockdev file,node-name=disk,filename=disk.img".split(' '))
        .args(MONITOR.split(' '))
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null());
    let mut program = Process::spawn(command);
    program.wait_until_accepting(&folder.join("qmp"));
    folder
        .run("backup qmp disk new.img --incremental b")
        .assert_success();
    assert_same_content(&folder, "disk.img", "new.img");
    folder
        .run("backup qmp disk new.img --incremental b")
        .assert_success();
    folder.run("qmp qmp quit").assert_success();
    program.ended().assert_success();
}

#[test]
fn mirror_command_moves_a_disk_to_a_file_and_to_a_server_while_its_guest_writes() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 2 * MIB, EXPORT);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let moved = printed_json(&folder.run("mirror qmp e new.img --json"));
    assert_eq!(moved["node-name"], "disk-moved");
    assert_same_content(&folder, "disk.img", "new.img");
    guest.request(0, OUT, 3, 9);
    let nodes = client.done("query-named-block-nodes", json!({}));
    let names = nodes
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["node-name"]);
    assert!(names.eq(["disk-moved", "copy"]), "{nodes}");

    let other = Folder::new();
    other.image("there.img", 2 * MIB);
    // Its monitor answers when the export is there.
    let (server, _) = start(
        &other,
        "--blockdev file,node-name=there,filename=there.img,cache.direct=off \
         --nbd-server addr.type=unix,addr.path=nbd --export nbd,id=x,node-name=there,writable=on",
    );
    let uri = format!("nbd+unix:///there?socket={}", other.join("nbd").display());
    let line = format!("mirror qmp e {uri} --node-name remote --write-blocking");
    assert!(
        folder
            .run(&line)
            .assert_success()
            .contains("disk-moved is now nbd+unix:")
    );
    guest.request(0, OUT, 5, 7);
    program.stop();
    server.stop();
    let there = std::fs::read(other.join("there.img")).unwrap();
    assert_eq!((there[3 * BLOCK], there[5 * BLOCK]), (9, 7));
    let disk = std::fs::read(folder.join("disk.img")).unwrap();
    assert!(disk[..3 * BLOCK] == there[..3 * BLOCK]);
}

/// Another export of the disk is in the way for longer than the command tries.
#[test]
fn mirror_command_that_cannot_complete_leaves_a_job_that_can_be_completed_later() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "mirror qmp disk new.img --speed 2M --write-blocking";
    let command = Process::spawn(folder.command(line.split_whitespace()));
    let deadline = Deadline::default();
    // Later than the command asks, when it has begun the job, whether that can complete.
    while client.done("query-jobs", json!({}))[0]["current-progress"].as_u64() < Some(2 * MIB) {
        deadline.check("some of the disk is copied");
    }
    client.done(
        "block-export-add",
        json!({"type": "vhost-user-scsi", "id": "s", "node-name": "disk", "addr": {"type": "unix", "path": "s.sock"}}),
    );
    let output = command.ended();
    let job = client.done("query-block-jobs", json!({}))[0].take();
    assert_eq!(job["status"], "ready", "{output:?}");
    assert!(
        job["cannot-complete"]
            .as_str()
            .unwrap()
            .contains("export 's'")
    );
    let id = job["device"].as_str().unwrap();
    let next = format!("job-complete id={id}");
    assert!(output.stderr.contains(&next), "{output:?}");
    client.done("block-export-del", json!({"id": "s"}));
    client.done("job-complete", json!({"id": id}));
    let ended = client.wait_for_event("BLOCK_JOB_COMPLETED");
    assert!(ended.get("error").is_none(), "{ended}");
    client.done("blockdev-del", json!({"node-name": "disk"}));
    program.stop();
    assert_same_content(&folder, "disk.img", "new.img");
}

#[test]
fn mirror_command_leaves_a_node_that_has_got_a_bitmap_meanwhile() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "mirror qmp disk new.img --speed 4M";
    let command = start_command(&folder, &mut client, line);
    let late = json!({"node": "disk", "name": "late"});
    client.done("block-dirty-bitmap-add", late);
    let output = command.ended();
    assert!(
        output.assert_success().contains("disk is still there"),
        "{output:?}"
    );
    assert_eq!(bitmap(&mut client, "disk", "late")["recording"], true);
    program.stop();
}

#[test]
fn interrupted_or_refused_mirror_command_leaves_the_disk_where_it_is() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "mirror qmp disk new.img --speed 1M";
    let command = start_command(&folder, &mut client, line);
    command.signal(Signal::INT);
    let output = command.ended();
    assert!(output.stderr.contains("interrupted"), "{output:?}");
    client.done(
        "block-export-add",
        json!({"type": "vhost-user-scsi", "id": "s", "node-name": "disk", "addr": {"type": "unix", "path": "s.sock"}}),
    );
    // It would copy for weeks.
    let output = folder.run("mirror qmp disk new.img --speed 1");
    assert!(
        output.stderr.contains("cannot go over to another node"),
        "{output:?}"
    );
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    let nodes = client.done("query-named-block-nodes", json!({}));
    assert_eq!(nodes.as_array().unwrap().len(), 2, "the target is closed");
    assert!(!folder.join("new.img").exists());
    program.stop();
}
