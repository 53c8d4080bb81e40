//! `blockplane backup`, `mirror` and `bitmap`, with this program and with qemu-storage-daemon.

use std::fs::metadata;
use std::os::unix::fs::PermissionsExt;

use blockplane::operator::client::Client as Monitor;
use blockplane::operator::job::run_with_pauses;
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::nbd_target::start_daemon;
use crate::process::{Folder, Process, ProcessOutput, STUCK_AFTER, words};
use crate::request_driver::{BLOCK, OUT};
use crate::{
    EXPORT, MIB, MONITOR, add_bitmap, assert_has, assert_no_jobs, assert_same_content,
    await_progress, bitmap, bitmaps, content, copy, start_with_disks, start_with_guest,
};

fn printed_json(output: &ProcessOutput) -> Value {
    serde_json::from_str(output.assert_success()).unwrap()
}

/// Names of all nodes, sorted.
fn node_names(client: &mut Client) -> Vec<String> {
    let nodes = client.execute("query-named-block-nodes");
    let nodes = nodes.as_array().unwrap().iter();
    let names = nodes.map(|node| node["node-name"].as_str().unwrap().to_owned());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Starts a command, and waits until its job runs: the disk is busy before.
fn start_command(folder: &Folder, client: &mut Client, line: &str) -> Process {
    let command = Process::spawn(folder.command(line.split_whitespace()));
    eventually("the job runs", || {
        client.execute("query-jobs")[0]["status"] == "running"
    });
    command
}

#[track_caller]
fn assert_fails(folder: &Folder, line: &str, reason: &str) {
    let output = folder.run(line);
    let names_it = output.stderr.contains(reason);
    assert!(output.code == Some(1) && names_it, "{line}: {output:?}");
}

/// Guests of SCSI controllers do not go over to other nodes.
fn add_scsi_export(client: &mut Client) {
    client.execute(
        "block-export-add type=vhost-user-scsi id=s node-name=disk addr.type=unix addr.path=s.sock",
    );
}

#[test]
fn backup_command_copies_all_and_then_what_has_changed() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, 2 * MIB, "");
    let line = words("backup qmp e new.img --incremental nightly --json");
    let generous = folder.command_after("umask 0; exec \"$0\" \"$@\"", line);
    let first = printed_json(&Process::spawn(generous).ended());
    assert_has(&first, json!({"kind": "full", "copied": 2 * MIB}));
    let mode = metadata(folder.join("new.img"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "it has all that the guest has");
    assert_same_content(&folder, "disk.img", "new.img");
    guest.request(0, OUT, 3, 9);
    let second = printed_json(&folder.run("backup qmp disk new.img --incremental nightly --json"));
    assert_has(&second, json!({"kind": "incremental", "copied": 65536}));
    assert_same_content(&folder, "disk.img", "new.img");
    assert_eq!(bitmap(&mut client, "disk", "nightly")["count"], 0);
    folder
        .run("bitmap qmp disk nightly --disable")
        .assert_success();
    // This write is in no bitmap.
    guest.request(0, OUT, 5, 7);
    let line = "backup qmp disk new.img --incremental nightly";
    assert_fails(&folder, line, "does not record");
    // The target is closed.
    assert_eq!(node_names(&mut client), ["copy", "disk"]);
    program.stop();
}

#[test]
fn backup_command_leaves_files_of_others_and_says_what_to_do() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, EXPORT);
    folder.image("mine.img", MIB);
    let persistent = "backup qmp disk new.img --incremental b --persistent";
    for (line, reason) in [
        (persistent, "bitmap-file=PATH"),
        ("backup qmp disk mine.img", "exists"),
        ("backup qmp missing new.img", "the nodes are: disk, copy"),
        ("backup qmp disk no/folder.img", "create"),
        ("backup qmp disk /dev/null", "neither a file"),
        ("mirror qmp disk qmp", "neither a file"),
    ] {
        assert_fails(&folder, line, reason);
        assert!(!folder.has("new.img"), "{line}");
    }
    add_bitmap(&mut client, "disk", "b");
    let line = "backup qmp disk lost.img --incremental b";
    assert_fails(&folder, line, "begin with a full backup");
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
    let id = client.execute("query-jobs")[0]["id"].clone();
    let left = id.as_str().unwrap();
    let advice = format!("job-cancel id={left}");
    assert_fails(&folder, "mirror qmp disk other.img", &advice);
    assert_fails(&folder, "mirror qmp disk copy", "--to-node");
    let longest = "n".repeat(26);
    client.execute(&format!("blockdev-add driver=null-co node-name={longest}"));
    let line = format!("mirror qmp {longest} other.img");
    assert_fails(&folder, &line, "--node-name");
    assert!(!folder.has("other.img"));
    client.done("job-cancel", json!({"id": id}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    add_bitmap(&mut client, "disk", "b");
    let advice = format!("blockdev-del node-name={left}");
    assert_fails(&folder, "backup qmp disk new.img --incremental b", &advice);
    client.done("blockdev-del", json!({"node-name": id}));
    program.stop();
}

#[test]
fn interrupted_or_refused_commands_leave_the_disk_as_it_is_and_remove_what_they_made() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let mut assert_nothing_is_left = || {
        assert_no_jobs(&mut client);
        assert_eq!(node_names(&mut client), ["copy", "disk"]);
        assert!(bitmaps(&mut client, "disk").is_empty());
        assert!(!folder.has("new.img"));
    };
    for line in [
        "backup qmp disk new.img --incremental b --speed 1",
        "mirror qmp disk new.img --speed 1M",
    ] {
        let mut client = Client::connect(&folder.join("qmp"));
        let command = start_command(&folder, &mut client, line);
        command.signal(Signal::INT);
        let output = command.ended();
        assert!(output.stderr.contains("interrupted"), "{output:?}");
        assert_nothing_is_left();
    }
    add_scsi_export(&mut Client::connect(&folder.join("qmp")));
    // It would copy for weeks.
    let line = "mirror qmp disk new.img --speed 1";
    assert_fails(&folder, line, "cannot go over to another node");
    assert_nothing_is_left();
    program.stop();
}

#[test]
fn bitmap_command_changes_bitmaps_and_lists_them() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, MIB, "");
    let run = |arguments: &str| folder.run(&format!("bitmap qmp {arguments}"));
    run("e b --add --granularity 4k").assert_success();
    run("disk other --add").assert_success();
    guest.request(0, OUT, 3, 9);
    let listed = printed_json(&run("--json"));
    assert_eq!(listed["copy"], json!([]));
    let listed = listed["disk"].as_array().unwrap().iter();
    let counts = listed.map(|bitmap| &bitmap["count"]);
    assert!(counts.eq([&json!(65536), &json!(4096)]));
    run("disk b --clear").assert_success();
    run("disk b --disable").assert_success();
    let found = bitmap(&mut client, "disk", "b");
    assert_has(&found, json!({"count": 0, "recording": false}));
    run("disk b --enable").assert_success();
    let table = run("disk b --merge other");
    assert!(table.assert_success().contains("recording"), "{table:?}");
    run("disk other --remove").assert_success();
    let listed = printed_json(&run("disk --json"));
    assert_eq!(listed["disk"].as_array().unwrap().len(), 1);
    assert_fails(&folder, "bitmap qmp disk missing --clear", "missing");
    program.stop();
}

#[test]
fn backup_command_works_with_qemu_storage_daemon() {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.join("disk.img"), content(MIB)).unwrap();
    let line = format!("--blockdev file,node-name=disk,filename=disk.img {MONITOR}");
    let program = Process::spawn_qemu_storage_daemon(&folder, &line);
    for _ in 0..2 {
        let output = folder.run("backup qmp disk new.img --incremental b");
        output.assert_success();
        assert_same_content(&folder, "disk.img", "new.img");
    }
    folder.run("qmp qmp quit").assert_success();
    program.ended().assert_success();
}

#[test]
fn mirror_command_moves_a_disk_to_a_file_and_to_a_server_while_its_guest_writes() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, 2 * MIB, "");
    let moved = printed_json(&folder.run("mirror qmp e new.img --json"));
    assert_eq!(moved["node-name"], "disk-moved");
    assert_same_content(&folder, "disk.img", "new.img");
    guest.request(0, OUT, 3, 9);
    assert_eq!(node_names(&mut client), ["copy", "disk-moved"]);

    let other = Folder::new();
    let (server, uri) = start_daemon(&other, 2 * MIB);
    let line = format!("mirror qmp e {uri} --node-name remote --write-blocking");
    let output = folder.run(&line);
    let said = output.assert_success();
    assert!(said.contains("disk-moved is now nbd+unix:"), "{said}");
    guest.request(0, OUT, 5, 7);
    program.stop();
    server.stop();
    let there = std::fs::read(other.join("there.img")).unwrap();
    assert_eq!((there[3 * BLOCK], there[5 * BLOCK]), (9, 7));
    let disk = std::fs::read(folder.join("disk.img")).unwrap();
    assert!(disk[..3 * BLOCK] == there[..3 * BLOCK]);
}

/// An export of the disk is in the way, which was not there when the command looked for such. It makes no pauses here.
#[test]
fn mirror_command_gives_up_to_complete_after_some_refusals() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, EXPORT);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut pauses = 0;
    let arguments = copy("full", json!({"speed": 1}));
    let ended = run_with_pauses(&mut monitor, "j", "blockdev-mirror", arguments, || {
        pauses += 1;
        if pauses == 1 {
            add_scsi_export(&mut client);
            client.execute("block-job-set-speed device=j speed=0");
            client.wait_for_event("BLOCK_JOB_READY");
        }
        assert!(pauses < 1000, "it goes on and on");
    });
    assert!(pauses > 10, "the reason may pass");
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("job-complete id=j"), "{error}");
    assert_eq!(crate::job(&mut client)["status"], "ready", "{error}");
    program.stop();
}

/// Another export of the disk is in the way for longer than the command tries, which is 10 s.
#[test]
#[ignore = "full run only"]
fn mirror_command_that_cannot_complete_leaves_a_job_that_can_be_completed_later() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "mirror qmp disk new.img --speed 2M --write-blocking";
    let command = Process::spawn(folder.command(line.split_whitespace()));
    // Later than the command asks, when it has begun the job, whether that can complete.
    await_progress(&mut client, 2 * MIB);
    add_scsi_export(&mut client);
    let id = crate::job(&mut client)["device"].take();
    let unlimited = json!({"device": id, "speed": 0});
    client.done("block-job-set-speed", unlimited);
    let output = command.ended();
    let job = crate::job(&mut client);
    assert_eq!(job["status"], "ready", "{output:?}");
    let reason = job["cannot-complete"].as_str().unwrap();
    assert!(reason.contains("export 's'"), "{reason}");
    let id = json!({"id": job["device"]});
    let next = format!("job-complete id={}", job["device"].as_str().unwrap());
    assert!(output.stderr.contains(&next), "{output:?}");
    let said = client.fails("job-complete", id.clone());
    assert!(said.contains("cannot go over to another node"), "{said}");
    client.execute("block-export-del id=s");
    client.done("job-complete", id);
    let ended = client.wait_for_event("BLOCK_JOB_COMPLETED");
    assert!(ended.get("error").is_none(), "{ended}");
    client.execute("blockdev-del node-name=disk");
    program.stop();
    assert_same_content(&folder, "disk.img", "new.img");
}

#[test]
fn mirror_command_leaves_a_node_that_has_got_a_bitmap_meanwhile() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let line = "mirror qmp disk new.img --speed 4M";
    let command = start_command(&folder, &mut client, line);
    add_bitmap(&mut client, "disk", "late");
    let output = command.ended();
    let said = output.assert_success();
    assert!(said.contains("disk is still there"), "{said}");
    assert_eq!(bitmap(&mut client, "disk", "late")["recording"], true);
    program.stop();
}
