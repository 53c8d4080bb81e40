//! Mirrors: commands, events and errors as qemu-storage-daemon has them, disks that fail, and what is refused.

use serde_json::{Value, json};

use crate::control::{events_until, job};
use crate::guest::{BLOCK, Guest, OUT};
use crate::process::Folder;
use crate::{MIB, assert_same_content, backup, completed, start_with_disks};

const EXPORT: &str =
    "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";
pub const MODES: [&str; 2] = ["background", "write-blocking"];

/// Arguments of a mirror of `disk` to `copy` by the job `j`, and others that replace them.
pub fn mirror(others: Value) -> Value {
    backup("full", others)
}

#[test]
fn mirror_has_the_events_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 4 * MIB, EXPORT);
    let (id, device) = (json!({"id": "j"}), json!({"device": "j"}));
    client.done("blockdev-mirror", mirror(json!({})));
    let begin = ["created", "running", "ready", "BLOCK_JOB_READY"];
    assert_eq!(events_until(&mut client, "BLOCK_JOB_READY"), begin);
    assert_eq!(
        job(&mut client),
        json!({"type": "mirror", "device": "j", "len": 4 * MIB, "offset": 4 * MIB, "speed": 0,
            "busy": false, "paused": false, "io-status": "ok", "ready": true, "status": "ready",
            "auto-finalize": true, "auto-dismiss": true, "actively-synced": false})
    );
    client.done("job-pause", id.clone());
    client.done("job-complete", id.clone());
    assert_eq!(
        client.fails("job-finalize", id.clone()),
        "Job 'j' in state 'standby' cannot accept command verb 'finalize'"
    );
    client.done("job-resume", id.clone());
    let end = [
        "waiting",
        "pending",
        "BLOCK_JOB_COMPLETED",
        "concluded",
        "null",
    ];
    let mut expected = vec!["standby", "ready"];
    expected.extend(end);
    assert_eq!(events_until(&mut client, "null"), expected);
    let exports = client.done("query-block-exports", json!({}));
    assert_eq!(exports[0]["node-name"], "copy");
    assert_same_content(&folder, "disk.img", "copy.img");

    let back = json!({"device": "copy", "target": "disk"});
    client.done("blockdev-mirror", mirror(back.clone()));
    assert_eq!(events_until(&mut client, "BLOCK_JOB_READY"), begin);
    client.done("block-job-cancel", device);
    assert_eq!(events_until(&mut client, "null"), end);
    client.done("blockdev-mirror", mirror(back));
    assert_eq!(events_until(&mut client, "BLOCK_JOB_READY"), begin);
    client.done("job-cancel", id);
    let cancelled = ["aborting", "BLOCK_JOB_CANCELLED", "concluded", "null"];
    assert_eq!(events_until(&mut client, "null"), cancelled);
    let exports = client.done("query-block-exports", json!({}));
    assert_eq!(
        exports[0]["node-name"], "copy",
        "guests stay where they are"
    );
    client.done("blockdev-del", json!({"node-name": "disk"}));
    program.stop();
}

#[test]
fn mirror_that_is_impossible_is_refused_as_by_qemu() {
    let folder = Folder::new();
    for (name, bytes) in [("large", 2 * MIB), ("small", MIB / 2)] {
        folder.image(&format!("{name}.img"), bytes);
    }
    let (program, mut client) = start_with_disks(
        &folder,
        MIB,
        "--blockdev file,node-name=small,filename=small.img --blockdev file,node-name=large,filename=large.img \
         --blockdev null-co,node-name=ro,size=1M,read-only=on \
         --blockdev null-co,node-name=below,size=1M --blockdev raw,node-name=above,file=below",
    );
    for (others, error) in [
        (json!({"target": "disk"}), "Can't mirror node into itself"),
        (json!({"device": "below"}), "Need a root block node"),
        (
            json!({"target": "small"}),
            "Source and target image have different sizes",
        ),
        (
            json!({"target": "large"}),
            "Source and target image have different sizes",
        ),
        (json!({"target": "ro"}), "Block node 'ro' is read-only"),
        (
            json!({"device": "x"}),
            "Cannot find device='x' nor node-name='x'",
        ),
        (
            json!({"target": "x"}),
            "Cannot find device='x' nor node-name='x'",
        ),
        (json!({"job-id": ""}), "Invalid job ID ''"),
        (
            json!({"speed": -5}),
            "Parameter 'speed' expects a non-negative value",
        ),
        (json!({"buf-size": -1}), "Invalid parameter 'buf-size'"),
        (
            json!({"granularity": 768}),
            "Parameter 'granularity' expects a power of 2",
        ),
        (
            json!({"granularity": -1}),
            "Parameter 'granularity' expects a value in range [512B, 64MB]",
        ),
        (
            json!({"granularity": 128 * MIB}),
            "Parameter 'granularity' expects a value in range [512B, 64MB]",
        ),
        (
            json!({"sync": "incremental"}),
            "Sync mode 'incremental' not supported",
        ),
        (
            json!({"sync": "bitmap"}),
            "Sync mode 'bitmap' not supported",
        ),
        (json!({"bitmap": "b"}), "Parameter 'bitmap' is unexpected"),
        // QEMU has these.
        (json!({"sync": "none"}), "Sync mode 'none' not supported"),
        (
            json!({"replaces": "disk"}),
            "Parameter 'replaces' is not supported",
        ),
        (
            json!({"filter-node-name": "f"}),
            "Parameter 'filter-node-name' is not supported",
        ),
        (
            json!({"auto-finalize": false}),
            "Parameter 'auto-finalize' has to be true",
        ),
    ] {
        let said = client.fails("blockdev-mirror", mirror(others));
        assert!(said.starts_with(error), "{said}");
    }
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    program.stop();
}

#[test]
fn guests_that_cannot_go_over_stay_and_the_mirror_goes_on() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    client.done(
        "block-export-add",
        json!({"type": "vhost-user-scsi", "id": "s", "node-name": "disk", "addr": {"type": "unix", "path": "s.sock"}}),
    );
    client.done("blockdev-mirror", mirror(json!({})));
    client.wait_for_event("BLOCK_JOB_READY");
    let said = client.fails("job-complete", json!({"id": "j"}));
    assert!(said.contains("cannot go over to another node"), "{said}");
    client.done("block-job-cancel", json!({"device": "j"}));
    completed(&mut client);
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

#[test]
fn failing_target_ends_the_mirror_and_not_the_guests_writes() {
    for mode in MODES {
        let folder = Folder::new();
        let filter = "--blockdev blkdebug,node-name=target,image=copy";
        let (program, mut client) =
            start_with_disks(&folder, 4 * MIB, &format!("{filter} {EXPORT}"));
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        let arguments = json!({"target": "target", "copy-mode": mode, "on-target-error": "stop"});
        client.done("blockdev-mirror", mirror(arguments));
        client.wait_for_event("BLOCK_JOB_READY");
        let rules = |rules: Value| json!({"node-name": "target", "inject-error": rules});
        let full = json!([{"iotype": "write", "errno": 28}]);
        client.done("x-blkdebug-set", rules(full.clone()));
        guest.request(0, OUT, 5, 255);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        let expected = json!({"device": "j", "operation": "write", "action": "stop"});
        assert_eq!(error, expected, "{mode}");
        assert_eq!(job(&mut client)["status"], "standby");
        assert_eq!(job(&mut client)["io-status"], "nospace");
        // It does not end while something is missing.
        client.done("job-complete", json!({"id": "j"}));
        guest.request(0, OUT, 6, 255);
        client.done("x-blkdebug-set", rules(json!([])));
        client.done("job-resume", json!({"id": "j"}));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        assert_same_content(&folder, "disk.img", "copy.img");

        let back = json!({"device": "target", "target": "disk"});
        client.done("blockdev-mirror", mirror(back));
        client.wait_for_event("BLOCK_JOB_READY");
        client.done("job-cancel", json!({"id": "j"}));
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        guest.request(0, OUT, 7, 255);
        program.stop();
    }
}

#[test]
fn mirror_whose_target_fails_is_reported_and_guests_stay() {
    for mode in MODES {
        let folder = Folder::new();
        let filter = "--blockdev blkdebug,node-name=target,image=copy";
        let (program, mut client) =
            start_with_disks(&folder, 4 * MIB, &format!("{filter} {EXPORT}"));
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        client.done(
            "blockdev-mirror",
            mirror(json!({"target": "target", "copy-mode": mode})),
        );
        client.wait_for_event("BLOCK_JOB_READY");
        let full = json!([{"iotype": "write", "errno": 5}]);
        client.done(
            "x-blkdebug-set",
            json!({"node-name": "target", "inject-error": full}),
        );
        guest.request(0, OUT, 5, 255);
        assert_eq!(client.wait_for_event("BLOCK_JOB_ERROR")["action"], "report");
        assert_eq!(completed(&mut client)["error"], "Input/output error");
        guest.request(0, OUT, 6, 255);
        let exports = client.done("query-block-exports", json!({}));
        assert_eq!(exports[0]["node-name"], "disk");
        program.stop();
    }
}

#[test]
fn mirror_whose_source_fails_is_reported_or_goes_on_later() {
    for policy in ["report", "stop"] {
        let folder = Folder::new();
        let (program, mut client) = start_with_disks(
            &folder,
            4 * MIB,
            "--blockdev blkdebug,node-name=source,image=disk \
             --export vhost-user-blk,id=e,node-name=source,writable=on,addr.type=unix,addr.path=e.sock",
        );
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        let rules = |rules: Value| json!({"node-name": "source", "inject-error": rules});
        let broken = json!([{"iotype": "read", "errno": 5}]);
        client.done("x-blkdebug-set", rules(broken));
        let arguments = json!({"device": "source", "on-source-error": policy});
        client.done("blockdev-mirror", mirror(arguments));
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(
            error,
            json!({"device": "j", "operation": "read", "action": policy})
        );
        guest.request(0, OUT, 5, 255);
        if policy == "report" {
            assert_eq!(completed(&mut client)["error"], "Input/output error");
        } else {
            client.done("x-blkdebug-set", rules(json!([])));
            client.done("job-resume", json!({"id": "j"}));
            client.wait_for_event("BLOCK_JOB_READY");
            client.done("job-complete", json!({"id": "j"}));
            assert!(completed(&mut client).get("error").is_none());
            assert_same_content(&folder, "disk.img", "copy.img");
        }
        guest.request(0, OUT, 6, 255);
        program.stop();
    }
}

#[test]
fn daemon_ends_in_the_middle_of_a_mirror() {
    for mode in MODES {
        let folder = Folder::new();
        let (program, mut client) = start_with_disks(&folder, 4 * MIB, EXPORT);
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        client.done(
            "blockdev-mirror",
            mirror(json!({"copy-mode": mode, "speed": 1})),
        );
        guest.request(0, OUT, 5, 255);
        program.stop();
        let disk = std::fs::read(folder.join("disk.img")).unwrap();
        assert_eq!(disk[5 * BLOCK], 255);
    }
}

#[test]
fn zeroes_of_the_source_take_no_space_in_a_target_that_is_zero() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    for name in ["sparse", "empty"] {
        folder.image(&format!("{name}.img"), 64 * MIB);
        let node = json!({"driver": "file", "node-name": name, "filename": format!("{name}.img")});
        client.done("blockdev-add", node);
    }
    let sparse = std::fs::File::options()
        .write(true)
        .open(folder.join("sparse.img"));
    sparse
        .unwrap()
        .write_all_at(&[7; 70_000], 10 * MIB)
        .unwrap();
    let disks = json!({"device": "sparse", "target": "empty", "target-is-zero": true});
    client.done("blockdev-mirror", mirror(disks));
    client.wait_for_event("BLOCK_JOB_READY");
    client.done("job-complete", json!({"id": "j"}));
    completed(&mut client);
    assert_same_content(&folder, "sparse.img", "empty.img");
    let allocated = std::fs::metadata(folder.join("empty.img"))
        .unwrap()
        .blocks()
        * 512;
    assert!(allocated <= MIB, "{allocated}");
    program.stop();
}

/// The guest, elsewhere, uses the target: what a mirror copied there later would be older than the guest's writes.
#[test]
fn mirror_that_is_not_ready_fails_when_its_guest_has_moved() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    client.done("blockdev-mirror", mirror(json!({"speed": MIB})));
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    let data = completed(&mut client);
    let error = data["error"].as_str().unwrap_or_default();
    assert!(error.contains("was migrated"), "{data}");
    // The migration has failed. A mirror that is ready can still be ended between the guest's stop and its start elsewhere.
    guest.start(0, base);
    client.done("blockdev-mirror", mirror(json!({})));
    client.wait_for_event("BLOCK_JOB_READY");
    guest.stop(0);
    client.done("block-job-cancel", json!({"device": "j"}));
    assert!(completed(&mut client).get("error").is_none());
    program.stop();
}

/// What is still to be copied would be written over what the guest, elsewhere, writes to the target.
#[test]
fn ready_mirror_copies_the_rest_or_fails_before_its_guest_moves() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, EXPORT);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    client.done("blockdev-mirror", mirror(json!({})));
    client.wait_for_event("BLOCK_JOB_READY");
    guest.request(0, OUT, 9, 77);
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    assert_same_content(&folder, "disk.img", "copy.img");
    guest.start(0, base);
    client.done("job-pause", json!({"id": "j"}));
    guest.request(0, OUT, 9, 78);
    guest.stop(0);
    let data = completed(&mut client);
    let error = data["error"].as_str().unwrap_or_default();
    assert!(error.contains("was migrated"), "{data}");
    program.stop();
}
