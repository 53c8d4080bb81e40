//! Bitmaps of jobs: what was copied is clean afterwards, only in the modes and cases in which it should be.

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{Guest, OUT};
use crate::process::{Folder, Process};
use crate::{MIB, assert_same_content, backup, bitmap, completed, start_with_disks};

const EXPORT: &str = "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock \
    --blockdev blkdebug,node-name=bad,image=copy,inject-error.0.iotype=write,inject-error.0.errno=28,\
inject-error.0.sector=2048";
const GRANULE: u64 = 65536;
/// Blocks of a granule.
const BLOCKS: u64 = GRANULE / 4096;

/// Two granules are dirty: the first one, and the one at 1 MiB, which the node `bad` cannot store.
fn with_two_dirty_granules(folder: &Folder) -> (Process, Client, Guest) {
    let (program, mut client) = start_with_disks(folder, 2 * MIB, EXPORT);
    std::fs::copy(folder.join("disk.img"), folder.join("before.img")).unwrap();
    let mut target = std::fs::File::options()
        .write(true)
        .open(folder.join("copy.img"))
        .unwrap();
    std::io::copy(
        &mut std::fs::File::open(folder.join("before.img")).unwrap(),
        &mut target,
    )
    .unwrap();
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 3, 1);
    guest.request(0, OUT, 16 * BLOCKS, 2);
    assert_eq!(dirty(&mut client), 2);
    (program, client, guest)
}

/// Dirty granules.
fn dirty(client: &mut Client) -> u64 {
    bitmap(client, "disk", "b")["count"].as_u64().unwrap() / GRANULE
}

/// Dirty granules after a job with these arguments, during which another granule becomes dirty, and a failed one of the same kind before.
fn dirty_after(sync: &str, mode: Value) -> (u64, u64) {
    let folder = Folder::new();
    let (program, mut client, mut guest) = with_two_dirty_granules(&folder);
    let mut arguments = json!({"bitmap": "b", "auto-finalize": false});
    if !mode.is_null() {
        arguments["bitmap-mode"] = mode;
    }
    arguments["target"] = "bad".into();
    client.done("blockdev-backup", backup(sync, arguments.clone()));
    assert_eq!(completed(&mut client)["error"], "No space left on device");
    let failed = dirty(&mut client);
    assert_eq!(bitmap(&mut client, "disk", "b")["busy"], false);
    arguments["target"] = "copy".into();
    client.done("blockdev-backup", backup(sync, arguments));
    client.wait_for_event("BLOCK_JOB_PENDING");
    assert_eq!(bitmap(&mut client, "disk", "b")["busy"], true);
    guest.request(0, OUT, 8 * BLOCKS, 3);
    client.done("job-finalize", json!({"id": "j"}));
    completed(&mut client);
    let succeeded = dirty(&mut client);
    // It still records.
    guest.request(0, OUT, 9 * BLOCKS, 3);
    assert_eq!(dirty(&mut client), succeeded + 1);
    program.stop();
    (failed, succeeded)
}

#[test]
fn incremental_backup_cleans_its_bitmap_if_it_succeeds() {
    assert_eq!(dirty_after("incremental", json!("on-success")), (2, 1));
    assert_eq!(dirty_after("incremental", Value::Null), (2, 1));
    assert_eq!(dirty_after("bitmap", json!("on-success")), (2, 1));
}

#[test]
fn backup_in_mode_never_leaves_its_bitmap_as_it_is() {
    assert_eq!(dirty_after("bitmap", json!("never")), (2, 3));
}

#[test]
fn backup_in_mode_always_cleans_what_was_copied_before_it_failed() {
    assert_eq!(dirty_after("bitmap", json!("always")), (1, 1));
}

#[test]
fn full_backup_cleans_its_bitmap_if_it_succeeds() {
    assert_eq!(dirty_after("full", json!("on-success")), (2, 1));
}

/// The job stops at its first error, and other parts may be under way then.
#[test]
fn failed_full_backup_in_mode_always_leaves_dirty_what_was_not_copied() {
    let (failed, succeeded) = dirty_after("full", json!("always"));
    assert!((1..32).contains(&failed), "{failed}");
    assert_eq!(succeeded, 1);
}

#[test]
fn incremental_backup_copies_what_is_dirty_and_nothing_else() {
    let folder = Folder::new();
    let (program, mut client, _guest) = with_two_dirty_granules(&folder);
    client.done(
        "blockdev-backup",
        backup("incremental", json!({"bitmap": "b"})),
    );
    let data = completed(&mut client);
    assert_eq!(
        (&data["len"], &data["offset"]),
        (&json!(2 * GRANULE), &json!(2 * GRANULE))
    );
    assert_same_content(&folder, "disk.img", "copy.img");
    client.done(
        "blockdev-backup",
        backup("incremental", json!({"bitmap": "b"})),
    );
    assert_eq!(completed(&mut client)["len"], 0);
    program.stop();
}

#[test]
fn cancelled_backup_keeps_all_that_was_dirty_and_what_was_written_since() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = with_two_dirty_granules(&folder);
    let arguments = json!({"bitmap": "b", "speed": 1});
    client.done("blockdev-backup", backup("incremental", arguments));
    guest.request(0, OUT, 8 * BLOCKS, 3);
    assert!(
        client
            .fails(
                "block-dirty-bitmap-clear",
                json!({"node": "disk", "name": "b"})
            )
            .contains("in use")
    );
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    assert_eq!(dirty(&mut client), 3);
    program.stop();
}

/// As libvirt does it: a bitmap for one job, which does not record, with what others have.
#[test]
fn bitmap_that_is_merged_for_a_backup_has_what_is_dirty_at_its_moment() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = with_two_dirty_granules(&folder);
    let actions = json!({"actions": [
        {"type": "block-dirty-bitmap-add", "data": {"node": "disk", "name": "tmp", "disabled": true}},
        {"type": "block-dirty-bitmap-merge", "data": {"node": "disk", "target": "tmp", "bitmaps": ["b"]}},
        {"type": "block-dirty-bitmap-clear", "data": {"node": "disk", "name": "b"}},
        {"type": "blockdev-backup", "data": backup("incremental", json!({"bitmap": "tmp", "auto-finalize": false}))},
    ]});
    client.done("transaction", actions);
    client.wait_for_event("BLOCK_JOB_PENDING");
    std::fs::copy(folder.join("disk.img"), folder.join("moment.img")).unwrap();
    guest.request(0, OUT, 8 * BLOCKS, 3);
    client.done("job-finalize", json!({"id": "j"}));
    assert_eq!(completed(&mut client)["len"], 2 * GRANULE);
    assert_same_content(&folder, "moment.img", "copy.img");
    assert_eq!(bitmap(&mut client, "disk", "tmp")["count"], 0);
    assert_eq!(dirty(&mut client), 1);
    program.stop();
}

/// As in QEMU: actions are carried out in their order, and a job keeps its bitmap from later ones.
#[test]
fn bitmap_is_not_changed_by_the_actions_after_its_backup() {
    let folder = Folder::new();
    let (program, mut client, _guest) = with_two_dirty_granules(&folder);
    let of_bitmap = |kind: &str| json!({"type": kind, "data": {"node": "disk", "name": "b"}});
    let backup = || {
        let data = backup("incremental", json!({"bitmap": "b"}));
        json!({"type": "blockdev-backup", "data": data})
    };
    let busy = "Bitmap 'b' is currently in use by another operation and cannot be used";
    for kind in ["clear", "remove", "disable", "enable"] {
        let later = of_bitmap(&format!("block-dirty-bitmap-{kind}"));
        let said = client.fails("transaction", json!({"actions": [backup(), later]}));
        assert_eq!(said, busy, "{kind}");
        assert_eq!(client.done("query-jobs", json!({})), json!([]));
        assert_eq!(bitmap(&mut client, "disk", "b")["busy"], false);
        assert_eq!(dirty(&mut client), 2);
    }
    let earlier = of_bitmap("block-dirty-bitmap-clear");
    client.done("transaction", json!({"actions": [earlier, backup()]}));
    assert_eq!(completed(&mut client)["len"], 0);
    program.stop();
}
