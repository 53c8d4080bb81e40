//! Jobs whose target is an export of a server that was started again: it may have lost what it had answered and not flushed.

use rustix::process::Signal;
use serde_json::json;

use crate::guest::OUT;
use crate::nbd_target::{node, restart, start_qemu_nbd};
use crate::process::{Folder, Process};
use crate::{
    MIB, add_bitmap, await_progress, begin_backup, begin_mirror, bitmap, cancel, copy, failed,
    start_with_disks, start_with_guest,
};

const BYTES: u64 = 8 * MIB;

/// What the server had answered and not flushed may be lost, whatever it says to a later flush.
#[test]
fn job_fails_if_its_server_was_started_again_meanwhile() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, BYTES) else {
        return;
    };
    let (program, mut client) = start_with_disks(&folder, BYTES, "");
    for command in ["blockdev-backup", "blockdev-mirror"] {
        client.done("blockdev-add", node(&server, 60));
        let arguments = json!({"target": "there", "speed": 1, "on-target-error": "stop"});
        client.done(command, copy("full", arguments));
        await_progress(&mut client, 1);
        restart(&mut server);
        client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
        let error = failed(&mut client);
        assert!(error.contains("may have lost"), "{command}: {error}");
        client.done("blockdev-del", json!({"node-name": "there"}));
    }
    for (command, key) in [("job-complete", "id"), ("block-job-cancel", "device")] {
        client.done("blockdev-add", node(&server, 60));
        begin_mirror(&mut client, json!({"target": "there"}));
        client.wait_for_event("BLOCK_JOB_READY");
        restart(&mut server);
        client.done(command, json!({key: "j"}));
        let error = failed(&mut client);
        assert!(error.contains("may have lost"), "{command}: {error}");
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
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, "");
    client.done("blockdev-add", node(&server, 60));
    add_bitmap(&mut client, "disk", "b");
    for block in (0..2048).step_by(16) {
        guest.request(0, OUT, block, 1);
    }
    for is_restarted in [true, false] {
        let arguments =
            json!({"target": "there", "bitmap": "b", "bitmap-mode": "always", "speed": 1});
        begin_backup(&mut client, "bitmap", arguments);
        await_progress(&mut client, 1);
        if is_restarted {
            restart(&mut server);
        }
        cancel(&mut client);
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
    for command in ["backup", "mirror"] {
        let line = format!("{command} qmp disk nbd+unix:///?socket={socket} --speed 1M");
        let command = Process::spawn(folder.command(line.split_whitespace()));
        await_progress(&mut client, 1);
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
    let slow = json!({"target": "there", "speed": MIB});
    begin_backup(&mut client, "full", slow);
    await_progress(&mut client, 1);
    server.kill();
    failed(&mut client);
    program.stop();
}

/// What others have written to the same server is flushed.
#[test]
fn failed_job_leaves_the_flush_to_others_that_use_its_targets_server() {
    let folder = Folder::new();
    let Some(mut server) = start_qemu_nbd(&folder, 2 * BYTES) else {
        return;
    };
    let line = format!(
        "--blockdev nbd,node-name=there,server.type=unix,server.path={} \
         --blockdev raw,node-name=first,file=there,size={BYTES} \
         --blockdev raw,node-name=second,file=there,offset={BYTES},size={BYTES} \
         --export vhost-user-blk,id=e,node-name=second,writable=on,addr.type=unix,addr.path=e.sock",
        server.socket().display()
    );
    let (program, mut client, mut guest) = start_with_guest(&folder, BYTES, &line);
    guest.request(0, OUT, 5, 1);
    let slow = json!({"target": "first", "speed": MIB});
    begin_backup(&mut client, "full", slow);
    await_progress(&mut client, 1);
    cancel(&mut client);
    server.kill();
    program.signal(Signal::TERM);
    let output = program.ended();
    // The guest's write was not flushed.
    assert_eq!(output.code, Some(1), "{output:?}");
}
