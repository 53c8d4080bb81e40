//! Commands for jobs, their events and errors: those of qemu-storage-daemon; and commands that are refused while a job runs.

use std::fs::{File, read};
use std::os::unix::fs::{FileExt, MetadataExt};

use serde_json::json;
use test_support::deadline::eventually;

use crate::client::Client;
use crate::process::Folder;
use crate::{
    EXPORT, MIB, add_bitmap, assert_no_jobs, assert_refused, assert_same_content, await_progress,
    begin_backup, begin_mirror, cancel, complete, copy, job, merged, start_with_disks, succeeded,
};

/// Events up to the last one of these, as names and statuses.
pub fn events_until(client: &mut Client, last: &str) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let event = client.wait_for_event_of(&[
            "JOB_STATUS_CHANGE",
            "BLOCK_JOB_COMPLETED",
            "BLOCK_JOB_CANCELLED",
            "BLOCK_JOB_PENDING",
            "BLOCK_JOB_READY",
            "BLOCK_JOB_ERROR",
        ]);
        let name = match event["event"].as_str().unwrap() {
            "JOB_STATUS_CHANGE" => event["data"]["status"].as_str().unwrap(),
            name => name,
        };
        names.push(name.to_owned());
        if name == last {
            return names;
        }
    }
}

/// The next events are these, separated by blanks.
#[track_caller]
pub fn assert_events(client: &mut Client, expected: &str) {
    let (_, last) = expected.rsplit_once(' ').unwrap_or(("", expected));
    assert_eq!(events_until(client, last).join(" "), expected);
}

#[test]
fn job_that_succeeds_has_the_events_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    begin_backup(&mut client, "full", json!({}));
    let all = "created running waiting pending BLOCK_JOB_COMPLETED concluded null";
    assert_events(&mut client, all);
    assert_same_content(&folder, "disk.img", "copy.img");
    let by_hand = json!({"auto-finalize": false, "auto-dismiss": false});
    begin_backup(&mut client, "full", by_hand);
    let pending = "created running waiting pending BLOCK_JOB_PENDING";
    assert_events(&mut client, pending);
    assert_eq!(
        job(&mut client),
        json!({"type": "backup", "device": "j", "len": MIB, "offset": MIB, "speed": 0,
            "busy": false, "paused": false, "io-status": "ok", "ready": false, "status": "pending",
            "auto-finalize": false, "auto-dismiss": false})
    );
    client.execute("job-finalize id=j");
    assert_events(&mut client, "BLOCK_JOB_COMPLETED concluded");
    let concluded = json!([{"id": "j", "type": "backup", "status": "concluded",
        "current-progress": MIB, "total-progress": MIB}]);
    assert_eq!(client.execute("query-jobs"), concluded);
    client.execute("job-dismiss id=j");
    assert_events(&mut client, "null");
    assert_no_jobs(&mut client);
    program.stop();
}

#[test]
fn job_is_paused_resumed_and_cancelled() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 4 * MIB, "");
    begin_backup(&mut client, "full", json!({"speed": 1}));
    client.execute("job-pause id=j");
    assert_eq!(job(&mut client)["status"], "paused");
    client.assert_errors("job-pause id=j => Job is already paused");
    client.execute("block-job-resume device=j");
    client.assert_errors(
        "job-resume id=j => Can't resume a job that was not paused
         job-complete id=j => Job 'j' in state 'running' cannot accept command verb 'complete'
         block-job-complete device=j => Job 'j' in state 'running' cannot accept command verb 'complete'
         job-finalize id=j => Job 'j' in state 'running' cannot accept command verb 'finalize'
         block-job-dismiss id=j => Job 'j' in state 'running' cannot accept command verb 'dismiss'",
    );
    client.execute("block-job-cancel device=j");
    let events = "created running paused running aborting BLOCK_JOB_CANCELLED concluded null";
    assert_events(&mut client, events);
    for command in [
        "pause", "resume", "cancel", "complete", "finalize", "dismiss",
    ] {
        let said = client.error_of(&format!("job-{command} id=j"));
        assert_eq!(said, "Job not found", "{command}");
    }
    let answer = client.ask("block-job-pause", json!({"device": "j"}));
    let expected = json!({"class": "DeviceNotActive", "desc": "Block job 'j' not found"});
    assert_eq!(answer["error"], expected);
    program.stop();
}

/// The first part begins at once.
#[test]
fn speed_is_limited_and_changed_while_the_job_runs() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 16 * MIB, "");
    let begin = std::time::Instant::now();
    begin_backup(&mut client, "full", json!({"speed": MIB}));
    await_progress(&mut client, 2 * MIB);
    // Not sooner: a busy machine only makes it later.
    assert!(begin.elapsed().as_millis() >= 1500, "{:?}", begin.elapsed());
    let negative = client.error_of("block-job-set-speed device=j speed=-1");
    assert_eq!(negative, "Parameter 'speed' expects a non-negative value");
    client.execute("block-job-set-speed device=j speed=0");
    assert_eq!(succeeded(&mut client)["speed"], 0);
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

#[test]
fn backup_that_is_impossible_is_refused_as_by_qemu() {
    let folder = Folder::new();
    folder.image("small.img", MIB / 2);
    let (program, mut client) = start_with_disks(
        &folder,
        MIB,
        "--blockdev file,node-name=small,filename=small.img --blockdev raw,node-name=above,file=disk \
         --blockdev null-co,node-name=ro,size=1M,read-only=on",
    );
    add_bitmap(&mut client, "disk", "b");
    let lines = r#"
{"target": "disk"} | Source and target cannot be the same
{"target": "above"} | Source and target cannot be the same
{"target": "small"} | Source and target image have different sizes
{"target": "ro"} | Block node 'ro' is read-only
{"device": "x"} | Cannot find device='x' nor node-name='x'
{"target": "x"} | Cannot find device='x' nor node-name='x'
{"job-id": ""} | Invalid job ID ''
{"job-id": "1"} | Invalid job ID '1'
{"speed": -5} | Parameter 'speed' expects a non-negative value
{"compress": true} | Compression is not supported for this drive 
{"x-perf": {"max-workers": 0}} | max-workers must be between 1 and 2147483647
{"x-perf": {"max-chunk": 1}} | Required max-chunk (1) is less than backup cluster size (65536)
{"bitmap-mode": "never"} | Cannot specify bitmap sync mode without a bitmap
{"bitmap": "b"} | Bitmap sync mode must be given when providing a bitmap
{"bitmap": "x", "bitmap-mode": "always"} | Bitmap 'x' could not be found
{"bitmap": "b", "bitmap-mode": "never"} | Bitmap sync mode 'never' has no meaningful effect when combined with sync mode 'full'
{"sync": "top", "bitmap": "b", "bitmap-mode": "never"} | Bitmap sync mode 'never' has no meaningful effect when combined with sync mode 'top'
{"sync": "none", "bitmap": "b", "bitmap-mode": "always"} | sync mode 'none' does not produce meaningful bitmap outputs
{"sync": "bitmap"} | must provide a valid bitmap name for 'bitmap' sync mode
{"sync": "incremental", "bitmap": "b", "bitmap-mode": "always"} | Bitmap sync mode must be 'on-success' when using sync mode 'incremental'
{"filter-node-name": "f"} | Parameter 'filter-node-name' is unexpected
"#;
    let arguments = |others| copy("full", others);
    assert_refused(&mut client, "blockdev-backup", arguments, lines);
    program.stop();
}

#[test]
fn disks_of_a_job_are_kept_as_they_are() {
    let folder = Folder::new();
    let further = format!(
        "--object iothread,id=io0 --blockdev null-co,node-name=zero,size=4M \
         --blockdev file,node-name=under,filename=disk.img,locking=off --blockdev raw,node-name=above,file=disk \
         {EXPORT},iothread=io0"
    );
    let (program, mut client) = start_with_disks(&folder, 4 * MIB, &further);
    begin_backup(&mut client, "full", json!({"speed": 1}));
    client.execute("block-export-del id=e");
    // The guest's writes would not lead through the disk any more.
    let bypass = client.reopen_error("driver=raw node-name=above file=under");
    assert!(bypass.contains("job"), "{bypass}");
    let reopen = "driver=file node-name=disk filename=disk.img cache.direct=false";
    for node in ["disk", "copy"] {
        let said = client.reopen_error(&reopen.replace("disk", node));
        assert!(said.contains("job"), "{said}");
    }
    client.assert_errors(
        "blockdev-del node-name=copy => job
         block_resize node-name=disk size=8388608 => job
         block_resize node-name=copy size=8388608 => job
         blockdev-set-active node-name=copy active=false => job
         object-del id=io0 => job
         block-dirty-bitmap-add node=copy name=b => job
         blockdev-backup job-id=k device=zero target=copy sync=full => job
         blockdev-backup job-id=k device=disk target=zero sync=full => job
         blockdev-backup job-id=j device=zero target=zero sync=full => Job",
    );
    // The source may have new bitmaps.
    add_bitmap(&mut client, "disk", "b");
    cancel(&mut client);
    client.execute("object-del id=io0");
    client.reopen(reopen);
    client.execute("blockdev-del node-name=copy");
    program.stop();
}

#[test]
fn holes_stay_holes_and_what_was_in_their_place_is_zeroed() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    for name in ["sparse", "empty", "full", "zero"] {
        folder.image(&format!("{name}.img"), 64 * MIB);
        let node = format!("driver=file node-name={name} filename={name}.img discard=unmap");
        client.execute(&format!("blockdev-add {node}"));
    }
    for (name, bytes, at) in [("sparse", 70_000, 10 * MIB), ("full", 64 << 20, 0)] {
        let file = File::options()
            .write(true)
            .open(folder.join(&format!("{name}.img")));
        file.unwrap().write_all_at(&vec![7; bytes], at).unwrap();
    }
    for target in ["empty", "full", "zero"] {
        let disks = json!({"device": "sparse", "target": target});
        if target == "zero" {
            begin_mirror(&mut client, merged(disks, json!({"target-is-zero": true})));
            client.wait_for_event("BLOCK_JOB_READY");
            complete(&mut client);
        } else {
            begin_backup(&mut client, "full", disks);
            succeeded(&mut client);
        }
        let image = format!("{target}.img");
        assert_same_content(&folder, "sparse.img", &image);
        let allocated = std::fs::metadata(folder.join(&image)).unwrap().blocks() * 512;
        assert!(allocated <= 2 * MIB, "{target}: {allocated}");
    }
    program.stop();
}

#[test]
fn holes_that_have_to_be_zeroed_count_against_the_speed() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    folder.image("sparse.img", MIB);
    client.execute("blockdev-add driver=file node-name=sparse filename=sparse.img");
    let others = json!({"device": "sparse", "target": "disk", "speed": 1});
    begin_backup(&mut client, "full", others);
    eventually("it has begun", || job(&mut client)["offset"] != 0);
    assert_eq!(cancel(&mut client)["offset"], 65536);
    program.stop();
}

/// The last cluster is not whole, and the target is larger.
#[test]
fn disk_of_any_size_is_copied_to_a_larger_one() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB + 512, "");
    folder.image("large.img", 2 * MIB);
    client.execute("blockdev-add driver=file node-name=large filename=large.img");
    begin_backup(&mut client, "full", json!({"target": "large"}));
    assert_eq!(succeeded(&mut client)["len"], MIB + 512);
    let mut expected = read(folder.join("disk.img")).unwrap();
    expected.resize(2 << 20, 0);
    assert!(read(folder.join("large.img")).unwrap() == expected);
    program.stop();
}
