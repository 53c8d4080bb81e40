//! Jobs whose target is an export of a server that was started again: it may have lost what it had answered and not flushed.

use rustix::process::Signal;
use serde_json::json;

use crate::guest::{Guest, OUT};
use crate::mirror::mirror;
use crate::nbd_target::{node, start_qemu_nbd};
use crate::process::{Folder, Process};
use crate::{MIB, await_progress, backup, bitmap, completed, start_with_disks};

const BYTES: u64 = 8 * MIB;

/// What the server had answered and not flushed may be lost, whatever it says to a later flush.
#[test]
fn job_fails_if_its_server_was_started_again_meanwhile() {
    for command in ["blockdev-backup", "blockdev-mirror"] {
        let folder = Folder::new();
        let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
            return;
        };
        let (program, mut client) = start_with_disks(&folder, BYTES, "");
        client.done("blockdev-add", node(&server, 60));
        let arguments = json!({"target": "there", "speed": 1, "on-target-error": "stop"});
        client.done(command, backup("full", arguments));
        await_progress(&mut client);
        server.kill();
        server.start();
        client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
        let data = completed(&mut client);
        let error = data["error"].as_str().unwrap_or_default();
        assert!(error.contains("may have lost"), "{command}: {data}");
        program.stop();
    }
}

#[test]
fn mirror_that_is_ready_does_not_end_after_its_server_was_started_again() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    for command in ["job-complete", "block-job-cancel"] {
        client.done("blockdev-add", node(&server, 60));
        client.done("blockdev-mirror", mirror(json!({"target": "there"})));
        client.wait_for_event("BLOCK_JOB_READY");
        server.kill();
        server.start();
        let name = if command == "job-complete" {
            "id"
        } else {
            "device"
        };
        client.done(command, json!({name: "j"}));
        let data = completed(&mut client);
        let error = data["error"].as_str().unwrap_or_default();
        assert!(error.contains("may have lost"), "{command}: {data}");
        client.done("blockdev-del", json!({"node-name": "there"}));
    }
    program.stop();
}

#[test]
fn cancelled_backup_leaves_nothing_clean_that_a_crashed_server_may_have_lost() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let export =
        "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";
    let (program, mut client) = start_with_disks(&folder, BYTES, export);
    client.done("blockdev-add", node(&server, 60));
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    for block in (0..2048).step_by(16) {
        guest.request(0, OUT, block, 1);
    }
    for is_restarted in [true, false] {
        let arguments =
            json!({"target": "there", "bitmap": "b", "bitmap-mode": "always", "speed": 1});
        client.done("blockdev-backup", backup("bitmap", arguments));
        await_progress(&mut client);
        if is_restarted {
            server.kill();
            server.start();
        }
        client.done("job-cancel", json!({"id": "j"}));
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        let dirty = bitmap(&mut client, "disk", "b")["count"].as_u64();
        assert_eq!(dirty == Some(BYTES), is_restarted);
    }
    program.stop();
}

/// What is on a target does not matter after its job has failed: so it can be tried again, and the daemon ends in order.
#[test]
fn target_of_a_failed_job_is_closed_without_its_server() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    let socket = server.socket().display().to_string();
    let uri = format!("nbd+unix:///?socket={socket}");
    for command in ["backup qmp disk", "mirror qmp disk"] {
        let line = format!("{command} {uri} --speed 1M");
        let command = Process::spawn(folder.command(line.split_whitespace()));
        await_progress(&mut client);
        server.kill();
        // Otherwise a mirror waits for a minute for the server.
        let id = client.done("query-jobs", json!({}))[0]["id"].clone();
        client.done("job-cancel", json!({"id": id}));
        let output = command.ended();
        assert!(output.stderr.contains("interrupted"), "{output:?}");
        let nodes = client.done("query-named-block-nodes", json!({}));
        assert_eq!(nodes.as_array().unwrap().len(), 2, "the target is closed");
        server.start();
    }
    client.done("blockdev-add", node(&server, 0));
    let arguments = json!({"target": "there", "speed": 1 << 20});
    client.done("blockdev-backup", backup("full", arguments));
    await_progress(&mut client);
    server.kill();
    assert!(completed(&mut client)["error"].is_string());
    assert_eq!(program.stop().code, Some(0));
}

/// What others have written to the same server is flushed.
#[test]
fn failed_job_leaves_the_flush_to_others_that_use_its_targets_server() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, 2 * BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    client.done("blockdev-add", node(&server, 0));
    for (name, offset) in [("first", 0), ("second", BYTES)] {
        let window = json!({"driver": "raw", "node-name": name, "file": "there",
            "offset": offset, "size": BYTES});
        client.done("blockdev-add", window);
    }
    let export = json!({"type": "vhost-user-blk", "id": "e", "node-name": "second", "writable": true,
        "addr": {"type": "unix", "path": "e.sock"}});
    client.done("block-export-add", export);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 5, 1);
    let arguments = json!({"target": "first", "speed": 1 << 20});
    client.done("blockdev-backup", backup("full", arguments));
    await_progress(&mut client);
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    server.kill();
    program.signal(Signal::TERM);
    let output = program.ended();
    assert_eq!(
        output.code,
        Some(1),
        "the guest's write was not flushed: {output:?}"
    );
}
