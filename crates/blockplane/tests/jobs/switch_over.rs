//! Guests that write without pause while their disk is mirrored: they go over to the target, or the target is a copy as of one moment;
//! no write is lost.

use serde_json::{Value, json};
use test_support::loop_device::LoopDevice;
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{
    BUSY_EXPORT, RecordingWriter, assert_is_of_one_moment,
};

use crate::client::Client;
use crate::ends::assert_holds_all_writes;
use crate::nbd_target::start_daemon;
use crate::process::{Folder, Process};
use crate::{
    MIB, MODES, await_progress, begin_mirror, complete, exported_node, start, start_with_disks,
    succeeded,
};

const BYTES: u64 = 8 * MIB;

/// Two empty disks of so many bytes, of which the first one is exported on two iothreads.
fn started(folder: &Folder, bytes: u64) -> (Process, Client, RecordingWriter) {
    folder.image("disk.img", bytes);
    folder.image("copy.img", bytes);
    let line = format!(
        "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off \
         --blockdev file,node-name=copy,filename=copy.img,cache.direct=off {BUSY_EXPORT}"
    );
    let (program, client) = start(folder, &line);
    let load = RecordingWriter::start(folder, Device::Blk, bytes);
    load.wait_for_progress(100);
    (program, client, load)
}

/// Has the guest go over from the first node to the second one and back, so many times, and ends at the second.
fn go_over(
    client: &mut Client,
    load: &RecordingWriter,
    mut names: [&'static str; 2],
    rounds: usize,
) {
    assert_eq!(rounds % 2, 1);
    for round in 0..rounds {
        let mode = MODES[round % 2];
        let disks = json!({"device": names[0], "target": names[1], "copy-mode": mode});
        begin_mirror(client, disks);
        client.wait_for_event("BLOCK_JOB_READY");
        load.wait_for_progress(50);
        complete(client);
        names.swap(0, 1);
        load.wait_for_progress(50);
    }
    assert_eq!(exported_node(client), names[0]);
    client.done("blockdev-del", json!({"node-name": names[1]}));
}

#[test]
fn guest_that_writes_goes_over_to_the_target_and_back() {
    let folder = Folder::new();
    let (program, mut client, load) = started(&folder, BYTES);
    go_over(&mut client, &load, ["disk", "copy"], 51);
    let writes = load.stop();
    assert_holds_all_writes(&folder, "copy.img", &writes);
    program.stop();
}

#[test]
fn guest_that_writes_goes_over_to_an_nbd_server_and_back() {
    let (folder, remote) = (Folder::new(), Folder::new());
    let (program, mut client, load) = started(&folder, BYTES);
    let (server, _) = start_daemon(&remote, BYTES);
    let address = json!({"type": "unix", "path": remote.join("nbd")});
    let node =
        json!({"driver": "nbd", "node-name": "remote", "server": address, "export": "there"});
    client.done("blockdev-add", node);
    go_over(&mut client, &load, ["disk", "remote"], 15);
    let writes = load.stop();
    program.stop();
    server.stop();
    assert_holds_all_writes(&remote, "there.img", &writes);
}

#[test]
fn writes_to_holes_while_the_disk_is_mirrored_are_in_the_target() {
    const BYTES: u64 = 32 * MIB;
    for mode in MODES {
        let folder = Folder::new();
        let (program, mut client, load) = started(&folder, BYTES);
        begin_mirror(&mut client, json!({"copy-mode": mode, "speed": 32 * MIB}));
        // As much as the disk has.
        await_progress(&mut client, BYTES);
        let writes = load.stop();
        client.execute("block-job-set-speed device=j speed=0");
        client.wait_for_event("BLOCK_JOB_READY");
        complete(&mut client);
        assert_holds_all_writes(&folder, "copy.img", &writes);
        program.stop();
    }
}

#[test]
fn mirror_that_ends_without_a_switch_over_is_a_copy_of_one_moment() {
    for mode in MODES {
        let folder = Folder::new();
        let (program, mut client, load) = started(&folder, BYTES);
        begin_mirror(&mut client, json!({"copy-mode": mode}));
        client.wait_for_event("BLOCK_JOB_READY");
        load.wait_for_progress(200);
        let after = load.now();
        client.execute("block-job-cancel device=j");
        succeeded(&mut client);
        let before = load.now();
        load.wait_for_progress(200);
        let writes = load.stop();
        let content = std::fs::read(folder.join("copy.img")).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
        assert_holds_all_writes(&folder, "disk.img", &writes);
        program.stop();
    }
}

#[test]
fn mirrors_of_a_busy_disk_are_cancelled_at_any_time() {
    let folder = Folder::new();
    let (program, mut client, load) = started(&folder, BYTES);
    let (mut names, mut switched) = (["disk", "copy"], 0);
    for round in 0..30u64 {
        let mode = MODES[usize::try_from(round % 2).unwrap()];
        let disks = json!({"device": names[0], "target": names[1], "copy-mode": mode});
        begin_mirror(&mut client, disks);
        if round % 3 > 0 {
            client.wait_for_event("BLOCK_JOB_READY");
            client.execute("job-complete id=j");
        }
        std::thread::sleep(std::time::Duration::from_micros(round * round * 100));
        // It may have ended.
        client.ask("job-cancel", json!({"id": "j"}));
        let event = client.wait_for_event_of(&["BLOCK_JOB_CANCELLED", "BLOCK_JOB_COMPLETED"]);
        assert!(event["data"].get("error").is_none(), "{event}");
        if event["event"] == "BLOCK_JOB_COMPLETED" {
            names.swap(0, 1);
            switched += 1;
        }
        assert_eq!(exported_node(&mut client), names[0]);
    }
    assert!(switched < 30, "some were cancelled");
    load.wait_for_progress(100);
    let writes = load.stop();
    assert_holds_all_writes(&folder, &format!("{}.img", names[0]), &writes);
    program.stop();
}

/// A disk and a mirror of it onto this one with larger blocks, `t`, which is ready. The disk has an export with blocks of so many
/// bytes for each name.
fn start_mirror_onto_larger_blocks(
    folder: &Folder,
    target: &LoopDevice,
    exports: &[(&str, u32)],
) -> (Process, Client) {
    let (program, mut client) = start_with_disks(folder, MIB, "");
    let node = json!({"driver": "host_device", "node-name": "t", "filename": target.path});
    client.done("blockdev-add", node);
    for (id, block_bytes) in exports {
        let export = export_with_blocks(id, "disk", *block_bytes);
        client.done("block-export-add", export);
    }
    let mirror = json!({"job-id": "j", "device": "disk", "target": "t", "sync": "full"});
    client.done("blockdev-mirror", mirror);
    client.wait_for_event("BLOCK_JOB_READY");
    (program, client)
}

/// An export whose guest has blocks of so many bytes.
fn export_with_blocks(id: &str, node: &str, block_bytes: u32) -> Value {
    json!({
        "type": "vhost-user-blk", "id": id, "node-name": node, "writable": true,
        "logical-block-size": block_bytes, "addr": {"type": "unix", "path": id},
    })
}

/// One of the guests writes parts of the target's blocks, the other one whole blocks: both cannot go over.
#[test]
fn refused_switch_over_leaves_the_blocks_of_the_target_to_others() {
    let Some(disk) = LoopDevice::new(MIB, 4096) else {
        return;
    };
    let folder = Folder::new();
    let exports = [("small", 512), ("large", 4096)];
    let (program, mut client) = start_mirror_onto_larger_blocks(&folder, &disk, &exports);
    let refused = client.error_of("job-complete id=j");
    assert!(refused.contains("another logical block size"), "{refused}");
    client.execute("block-job-cancel device=j");
    client.wait_for_event("BLOCK_JOB_COMPLETED");
    client.done("block-export-add", export_with_blocks("e", "t", 4096));
    program.stop();
}

/// The guest that goes over is not the one that was there when the end began.
#[test]
fn blocks_of_an_export_that_has_gone_do_not_hinder_a_switch_over() {
    let Some(disk) = LoopDevice::new(MIB, 4096) else {
        return;
    };
    let folder = Folder::new();
    let exports = [("small", 512)];
    let (program, mut client) = start_mirror_onto_larger_blocks(&folder, &disk, &exports);
    client.execute(
        "job-pause id=j
         job-complete id=j
         block-export-del id=small",
    );
    client.wait_for_event("BLOCK_EXPORT_DELETED");
    client.done(
        "block-export-add",
        export_with_blocks("large", "disk", 4096),
    );
    client.execute("job-resume id=j");
    succeeded(&mut client);
    program.stop();
}
