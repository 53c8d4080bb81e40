//! Mirrors: commands, events and errors as qemu-storage-daemon has them, disks that fail, and what is refused.

use serde_json::json;

use crate::control::assert_events;
use crate::process::Folder;
use crate::request_driver::OUT;
use crate::{
    EXPORT, MIB, MODES, assert_has, assert_refused, assert_same_content, begin_mirror, cancel,
    complete, copy, exported_node, failed, job, set_faults, start_with_disks, start_with_guest,
    succeeded,
};

#[test]
fn mirror_has_the_events_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 4 * MIB, EXPORT);
    let (id, device) = (json!({"id": "j"}), json!({"device": "j"}));
    begin_mirror(&mut client, json!({}));
    let begin = "created running ready BLOCK_JOB_READY";
    assert_events(&mut client, begin);
    assert_eq!(
        job(&mut client),
        json!({"type": "mirror", "device": "j", "len": 4 * MIB, "offset": 4 * MIB, "speed": 0,
            "busy": false, "paused": false, "io-status": "ok", "ready": true, "status": "ready",
            "auto-finalize": true, "auto-dismiss": true, "actively-synced": false})
    );
    client.done("job-pause", id.clone());
    client.done("job-complete", id.clone());
    let said = client.fails("job-finalize", id.clone());
    let expected = "Job 'j' in state 'standby' cannot accept command verb 'finalize'";
    assert_eq!(said, expected);
    client.done("job-resume", id.clone());
    let end = "waiting pending BLOCK_JOB_COMPLETED concluded null";
    assert_events(&mut client, &format!("standby ready {end}"));
    assert_eq!(exported_node(&mut client), "copy");
    assert_same_content(&folder, "disk.img", "copy.img");

    // Without a switch over, guests stay where they are.
    let cancelled = "aborting BLOCK_JOB_CANCELLED concluded null";
    for (command, arguments, end) in [
        ("block-job-cancel", &device, end),
        ("job-cancel", &id, cancelled),
    ] {
        begin_mirror(&mut client, json!({"device": "copy", "target": "disk"}));
        assert_events(&mut client, begin);
        client.done(command, arguments.clone());
        assert_events(&mut client, end);
        assert_eq!(exported_node(&mut client), "copy");
    }
    client.execute("blockdev-del node-name=disk");
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
    // QEMU has the last five.
    let lines = r#"
{"target": "disk"} | Can't mirror node into itself
{"device": "below"} | Need a root block node
{"target": "small"} | Source and target image have different sizes
{"target": "large"} | Source and target image have different sizes
{"target": "ro"} | Block node 'ro' is read-only
{"device": "x"} | Cannot find device='x' nor node-name='x'
{"target": "x"} | Cannot find device='x' nor node-name='x'
{"job-id": ""} | Invalid job ID ''
{"speed": -5} | Parameter 'speed' expects a non-negative value
{"buf-size": -1} | Invalid parameter 'buf-size'
{"granularity": 768} | Parameter 'granularity' expects a power of 2
{"granularity": -1} | Parameter 'granularity' expects a value in range [512B, 64MB]
{"granularity": 134217728} | Parameter 'granularity' expects a value in range [512B, 64MB]
{"sync": "incremental"} | Sync mode 'incremental' not supported
{"sync": "bitmap"} | Sync mode 'bitmap' not supported
{"bitmap": "b"} | Parameter 'bitmap' is unexpected
{"sync": "none"} | Sync mode 'none' not supported
{"replaces": "disk"} | Parameter 'replaces' is not supported
{"filter-node-name": "f"} | Parameter 'filter-node-name' is not supported
{"auto-finalize": false} | Parameter 'auto-finalize' has to be true
"#;
    let arguments = |others| copy("full", others);
    assert_refused(&mut client, "blockdev-mirror", arguments, lines);
    program.stop();
}

#[test]
fn failing_target_ends_or_stops_the_mirror_and_not_the_guests_writes() {
    for mode in MODES {
        let folder = Folder::new();
        let filter = "--blockdev blkdebug,node-name=target,image=copy";
        let (program, mut client, mut guest) = start_with_guest(&folder, 4 * MIB, filter);
        begin_mirror(&mut client, json!({"target": "target", "copy-mode": mode}));
        client.wait_for_event("BLOCK_JOB_READY");
        let broken = json!([{"iotype": "write", "errno": 5}]);
        set_faults(&mut client, "target", broken);
        guest.request(0, OUT, 5, 254);
        assert_eq!(client.wait_for_event("BLOCK_JOB_ERROR")["action"], "report");
        assert_eq!(failed(&mut client), "Input/output error");
        guest.request(0, OUT, 6, 254);
        assert_eq!(exported_node(&mut client), "disk");
        set_faults(&mut client, "target", json!([]));

        let arguments = json!({"target": "target", "copy-mode": mode, "on-target-error": "stop"});
        begin_mirror(&mut client, arguments);
        client.wait_for_event("BLOCK_JOB_READY");
        let full = json!([{"iotype": "write", "errno": 28}]);
        set_faults(&mut client, "target", full);
        guest.request(0, OUT, 5, 255);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        let expected = json!({"device": "j", "operation": "write", "action": "stop"});
        assert_eq!(error, expected, "{mode}");
        let stopped = json!({"status": "standby", "io-status": "nospace"});
        assert_has(&job(&mut client), stopped);
        // It does not end while something is missing.
        client.execute("job-complete id=j");
        guest.request(0, OUT, 6, 255);
        set_faults(&mut client, "target", json!([]));
        client.execute("job-resume id=j");
        succeeded(&mut client);
        assert_same_content(&folder, "disk.img", "copy.img");

        begin_mirror(&mut client, json!({"device": "target", "target": "disk"}));
        client.wait_for_event("BLOCK_JOB_READY");
        cancel(&mut client);
        guest.request(0, OUT, 7, 255);
        program.stop();
    }
}

#[test]
fn mirror_whose_source_fails_is_reported_or_goes_on_later() {
    let folder = Folder::new();
    let source = "--blockdev blkdebug,node-name=source,image=disk \
        --export vhost-user-blk,id=e,node-name=source,writable=on,addr.type=unix,addr.path=e.sock";
    let (program, mut client, mut guest) = start_with_guest(&folder, 4 * MIB, source);
    for policy in ["report", "stop"] {
        let broken = json!([{"iotype": "read", "errno": 5}]);
        set_faults(&mut client, "source", broken);
        let arguments = json!({"device": "source", "on-source-error": policy});
        begin_mirror(&mut client, arguments);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        let expected = json!({"device": "j", "operation": "read", "action": policy});
        assert_eq!(error, expected);
        guest.request(0, OUT, 5, 255);
        if policy == "report" {
            assert_eq!(failed(&mut client), "Input/output error");
        } else {
            set_faults(&mut client, "source", json!([]));
            client.execute("job-resume id=j");
            client.wait_for_event("BLOCK_JOB_READY");
            assert_has(&job(&mut client), json!({"io-status": "ok"}));
            complete(&mut client);
            assert_same_content(&folder, "disk.img", "copy.img");
        }
        guest.request(0, OUT, 6, 255);
    }
    program.stop();
}

/// Its copier has work left, and nothing else wakes it.
#[test]
fn paused_mirror_that_is_about_to_end_ends_when_it_is_cancelled() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, 8 * MIB, "");
    begin_mirror(&mut client, json!({}));
    client.wait_for_event("BLOCK_JOB_READY");
    client.execute("block-job-set-speed device=j speed=1");
    // The first part is copied in any case.
    guest.ask_all(0, OUT, (0..8).map(|part| (part * 256, 1)));
    guest.watch_all(0);
    client.execute(
        "block-job-complete device=j
         block-job-pause device=j
         block-job-set-speed device=j speed=0
         block-job-cancel device=j",
    );
    succeeded(&mut client);
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

/// The guest, elsewhere, uses the target: what a mirror copied there later would be older than the guest's writes.
#[test]
fn mirror_that_is_not_ready_fails_when_its_guest_has_moved() {
    let folder = Folder::new();
    let (program, mut client, guest) = start_with_guest(&folder, 8 * MIB, "");
    begin_mirror(&mut client, json!({"speed": MIB}));
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    let error = failed(&mut client);
    assert!(error.contains("was migrated"), "{error}");
    // The migration has failed. A mirror that is ready can still be ended between the guest's stop and its start elsewhere.
    guest.start(0, base);
    begin_mirror(&mut client, json!({}));
    client.wait_for_event("BLOCK_JOB_READY");
    guest.stop(0);
    client.execute("block-job-cancel device=j");
    succeeded(&mut client);
    program.stop();
}

/// What is still to be copied would be written over what the guest, elsewhere, writes to the target.
#[test]
fn ready_mirror_copies_the_rest_or_fails_before_its_guest_moves() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, 8 * MIB, "");
    begin_mirror(&mut client, json!({}));
    client.wait_for_event("BLOCK_JOB_READY");
    guest.request(0, OUT, 9, 77);
    guest.log_dirty_pages(true);
    let base = guest.stop(0);
    assert_same_content(&folder, "disk.img", "copy.img");
    guest.start(0, base);
    client.execute("job-pause id=j");
    guest.request(0, OUT, 9, 78);
    guest.stop(0);
    let error = failed(&mut client);
    assert!(error.contains("was migrated"), "{error}");
    program.stop();
}
