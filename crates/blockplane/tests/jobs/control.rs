//! Commands for jobs, their events and errors: those of qemu-storage-daemon; and commands that are refused while a job runs.

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{Guest, OUT};
use crate::process::Folder;
use crate::{MIB, assert_same_content, backup, completed, start_with_disks};

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

pub fn job(client: &mut Client) -> Value {
    client.done("query-block-jobs", json!({}))[0].take()
}

#[test]
fn job_that_succeeds_has_the_events_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    client.done("blockdev-backup", backup("full", json!({})));
    assert_eq!(
        events_until(&mut client, "null"),
        [
            "created",
            "running",
            "waiting",
            "pending",
            "BLOCK_JOB_COMPLETED",
            "concluded",
            "null"
        ]
    );
    assert_same_content(&folder, "disk.img", "copy.img");
    let by_hand = json!({"auto-finalize": false, "auto-dismiss": false});
    client.done("blockdev-backup", backup("full", by_hand));
    assert_eq!(
        events_until(&mut client, "BLOCK_JOB_PENDING"),
        [
            "created",
            "running",
            "waiting",
            "pending",
            "BLOCK_JOB_PENDING"
        ]
    );
    assert_eq!(
        job(&mut client),
        json!({"type": "backup", "device": "j", "len": MIB, "offset": MIB, "speed": 0,
            "busy": false, "paused": false, "io-status": "ok", "ready": false, "status": "pending",
            "auto-finalize": false, "auto-dismiss": false})
    );
    client.done("job-finalize", json!({"id": "j"}));
    assert_eq!(
        events_until(&mut client, "concluded"),
        ["BLOCK_JOB_COMPLETED", "concluded"]
    );
    let jobs = client.done("query-jobs", json!({}));
    assert_eq!(
        jobs,
        json!([{"id": "j", "type": "backup", "status": "concluded",
            "current-progress": MIB, "total-progress": MIB}])
    );
    client.done("job-dismiss", json!({"id": "j"}));
    assert_eq!(events_until(&mut client, "null"), ["null"]);
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    program.stop();
}

#[test]
fn job_is_paused_resumed_and_cancelled() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 4 * MIB, "");
    client.done("blockdev-backup", backup("full", json!({"speed": 1})));
    let (id, device) = (json!({"id": "j"}), json!({"device": "j"}));
    client.done("job-pause", id.clone());
    assert_eq!(job(&mut client)["status"], "paused");
    assert_eq!(
        client.fails("job-pause", id.clone()),
        "Job is already paused"
    );
    client.done("block-job-resume", device.clone());
    let again = client.fails("job-resume", id.clone());
    assert_eq!(again, "Can't resume a job that was not paused");
    for (command, arguments, verb) in [
        ("job-complete", &id, "complete"),
        ("block-job-complete", &device, "complete"),
        ("job-finalize", &id, "finalize"),
        ("block-job-dismiss", &id, "dismiss"),
    ] {
        let said = client.fails(command, arguments.clone());
        assert_eq!(
            said,
            format!("Job 'j' in state 'running' cannot accept command verb '{verb}'")
        );
    }
    client.done("block-job-cancel", device.clone());
    let events = events_until(&mut client, "null");
    let expected = [
        "created",
        "running",
        "paused",
        "running",
        "aborting",
        "BLOCK_JOB_CANCELLED",
        "concluded",
        "null",
    ];
    assert_eq!(events, expected);
    for command in [
        "job-pause",
        "job-resume",
        "job-cancel",
        "job-complete",
        "job-finalize",
        "job-dismiss",
    ] {
        assert_eq!(client.fails(command, id.clone()), "Job not found");
    }
    let answer = client.ask("block-job-pause", device);
    let expected = json!({"class": "DeviceNotActive", "desc": "Block job 'j' not found"});
    assert_eq!(answer["error"], expected);
    program.stop();
}

/// Five parts of 64 KiB take four seconds at 64 KiB per second.
#[test]
fn speed_is_limited_and_changed_while_the_job_runs() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 16 * MIB, "");
    let begin = std::time::Instant::now();
    client.done("blockdev-backup", backup("full", json!({"speed": MIB})));
    test_support::deadline::eventually("some of it is copied", || {
        job(&mut client)["offset"].as_u64().unwrap() >= 2 * MIB
    });
    // The first part begins at once.
    assert!(begin.elapsed().as_millis() >= 1500, "{:?}", begin.elapsed());
    let copied = job(&mut client)["offset"].as_u64().unwrap();
    assert!(copied < 16 * MIB, "it is not complete");
    let negative = json!({"device": "j", "speed": -1});
    assert_eq!(
        client.fails("block-job-set-speed", negative),
        "Parameter 'speed' expects a non-negative value"
    );
    client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
    assert_eq!(completed(&mut client)["speed"], 0);
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
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    for (others, error) in [
        (
            json!({"target": "disk"}),
            "Source and target cannot be the same",
        ),
        (
            json!({"target": "above"}),
            "Source and target cannot be the same",
        ),
        (
            json!({"target": "small"}),
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
        (json!({"job-id": "1"}), "Invalid job ID '1'"),
        (
            json!({"speed": -5}),
            "Parameter 'speed' expects a non-negative value",
        ),
        (
            json!({"compress": true}),
            "Compression is not supported for this drive ",
        ),
        (
            json!({"x-perf": {"max-workers": 0}}),
            "max-workers must be between 1 and 2147483647",
        ),
        (
            json!({"x-perf": {"max-chunk": 1}}),
            "Required max-chunk (1) is less than backup cluster size (65536)",
        ),
        (
            json!({"bitmap-mode": "never"}),
            "Cannot specify bitmap sync mode without a bitmap",
        ),
        (
            json!({"bitmap": "b"}),
            "Bitmap sync mode must be given when providing a bitmap",
        ),
        (
            json!({"bitmap": "x", "bitmap-mode": "always"}),
            "Bitmap 'x' could not be found",
        ),
        (
            json!({"bitmap": "b", "bitmap-mode": "never"}),
            "Bitmap sync mode 'never' has no meaningful effect when combined with sync mode 'full'",
        ),
        (
            json!({"sync": "top", "bitmap": "b", "bitmap-mode": "never"}),
            "Bitmap sync mode 'never' has no meaningful effect when combined with sync mode 'top'",
        ),
        (
            json!({"sync": "none", "bitmap": "b", "bitmap-mode": "always"}),
            "sync mode 'none' does not produce meaningful bitmap outputs",
        ),
        (
            json!({"sync": "bitmap"}),
            "must provide a valid bitmap name for 'bitmap' sync mode",
        ),
        (
            json!({"sync": "incremental", "bitmap": "b", "bitmap-mode": "always"}),
            "Bitmap sync mode must be 'on-success' when using sync mode 'incremental'",
        ),
        (
            json!({"filter-node-name": "f"}),
            "Parameter 'filter-node-name' is unexpected",
        ),
    ] {
        let said = client.fails("blockdev-backup", backup("full", others));
        assert!(said.starts_with(error), "{said}");
    }
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    program.stop();
}

#[test]
fn disks_of_a_job_are_kept_as_they_are() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(
        &folder,
        4 * MIB,
        "--object iothread,id=io0 --blockdev null-co,node-name=null,size=4M \
         --blockdev file,node-name=under,filename=disk.img,locking=off --blockdev raw,node-name=above,file=disk \
         --export vhost-user-blk,id=e,node-name=disk,writable=on,iothread=io0,addr.type=unix,addr.path=e.sock",
    );
    client.done("blockdev-backup", backup("full", json!({"speed": 1})));
    client.done("block-export-del", json!({"id": "e"}));
    let reopen = |node: &str| {
        json!({"options": [{"driver": "file", "node-name": node, "filename": format!("{node}.img"),
            "cache": {"direct": false}}]})
    };
    // The guest's writes would not lead through the disk any more.
    let bypass = json!({"options": [{"driver": "raw", "node-name": "above", "file": "under"}]});
    for (command, arguments) in [
        ("blockdev-del", json!({"node-name": "copy"})),
        (
            "block_resize",
            json!({"node-name": "disk", "size": 8 * MIB}),
        ),
        (
            "block_resize",
            json!({"node-name": "copy", "size": 8 * MIB}),
        ),
        (
            "blockdev-set-active",
            json!({"node-name": "copy", "active": false}),
        ),
        ("blockdev-reopen", reopen("disk")),
        ("blockdev-reopen", reopen("copy")),
        ("blockdev-reopen", bypass),
        ("object-del", json!({"id": "io0"})),
        (
            "block-dirty-bitmap-add",
            json!({"node": "copy", "name": "b"}),
        ),
        (
            "blockdev-backup",
            backup("full", json!({"job-id": "k", "device": "null"})),
        ),
        (
            "blockdev-backup",
            backup("full", json!({"job-id": "k", "target": "null"})),
        ),
        (
            "blockdev-backup",
            backup("full", json!({"device": "null", "target": "null"})),
        ),
    ] {
        let said = client.fails(command, arguments);
        assert!(
            said.contains("job") || said.contains("Job"),
            "{command}: {said}"
        );
    }
    // The source may have new bitmaps.
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    client.done("object-del", json!({"id": "io0"}));
    client.done("blockdev-reopen", reopen("disk"));
    client.done("blockdev-del", json!({"node-name": "copy"}));
    program.stop();
}

/// For a client that reads the target and, where it has nothing, the disk.
#[test]
fn sync_none_copies_only_what_the_guest_changes() {
    /// Two pages, and the next one: the writes seem to follow each other.
    const COPIED: usize = 3 * 4096;
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(
        &folder,
        MIB,
        "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock",
    );
    let before = std::fs::read(folder.join("disk.img")).unwrap();
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    client.done("blockdev-backup", backup("none", json!({})));
    guest.request(0, OUT, 16, 255);
    guest.request(0, OUT, 17, 255);
    let progress = job(&mut client);
    assert_eq!(
        (&progress["offset"], &progress["len"]),
        (&json!(COPIED), &json!(MIB))
    );
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    guest.request(0, OUT, 40, 255);
    let copy = std::fs::read(folder.join("copy.img")).unwrap();
    let end = 65536 + COPIED;
    assert!(copy[65536..end] == before[65536..end]);
    assert!(
        copy[..65536]
            .iter()
            .chain(&copy[end..])
            .all(|byte| *byte == 0)
    );
    program.stop();
}

#[test]
fn holes_stay_holes_and_what_was_in_their_place_is_zeroed() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    for name in ["sparse.img", "empty.img", "full.img"] {
        folder.image(name, 64 * MIB);
    }
    let file = |name: &str| {
        std::fs::File::options()
            .write(true)
            .open(folder.join(name))
            .unwrap()
    };
    file("sparse.img")
        .write_all_at(&[7; 70_000], 10 * MIB)
        .unwrap();
    file("full.img")
        .write_all_at(&vec![9; 64 << 20], 0)
        .unwrap();
    for name in ["sparse", "empty", "full"] {
        let node = json!({"driver": "file", "node-name": name, "filename": format!("{name}.img"), "discard": "unmap"});
        client.done("blockdev-add", node);
    }
    for target in ["empty", "full"] {
        let disks = json!({"device": "sparse", "target": target});
        client.done("blockdev-backup", backup("full", disks));
        completed(&mut client);
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
    let node = json!({"driver": "file", "node-name": "sparse", "filename": "sparse.img"});
    client.done("blockdev-add", node);
    let others = json!({"device": "sparse", "target": "disk", "speed": 1});
    client.done("blockdev-backup", backup("full", others));
    while job(&mut client)["offset"] == 0 {
        std::thread::yield_now();
    }
    client.done("job-cancel", json!({"id": "j"}));
    let data = client.wait_for_event("BLOCK_JOB_CANCELLED");
    assert_eq!(data["offset"], 65536);
    program.stop();
}

/// The last cluster is not whole, and the target is larger.
#[test]
fn disk_of_any_size_is_copied_to_a_larger_one() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB + 512, "");
    folder.image("large.img", 2 * MIB);
    let node = json!({"driver": "file", "node-name": "large", "filename": "large.img"});
    client.done("blockdev-add", node);
    client.done(
        "blockdev-backup",
        backup("full", json!({"target": "large"})),
    );
    assert_eq!(completed(&mut client)["len"], MIB + 512);
    let large = std::fs::read(folder.join("large.img")).unwrap();
    let length = usize::try_from(MIB + 512).unwrap();
    assert!(large[..length] == std::fs::read(folder.join("disk.img")).unwrap());
    assert!(large[length..].iter().all(|byte| *byte == 0));
    program.stop();
}
