//! Bitmaps of jobs: what was copied is clean afterwards, only in the modes and cases in which it should be.

use serde_json::{Value, json};

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{OUT, RequestDriver};
use crate::{
    MIB, add_bitmap, assert_no_jobs, assert_same_content, begin_backup, bitmap, cancel, completed,
    copy, failed, start_with_guest, succeeded,
};

/// A target that cannot store the granule at 1 MiB.
const BAD: &str = "--blockdev blkdebug,node-name=bad,image=copy,inject-error.0.iotype=write,inject-error.0.errno=28,\
inject-error.0.sector=2048";
const GRANULE: u64 = 65536;
/// Blocks of a granule.
const BLOCKS: u64 = GRANULE / 4096;

/// Two granules are dirty: the first one, and the one at 1 MiB. The target has the content of before.
fn with_two_dirty_granules() -> (Folder, Process, Client, RequestDriver) {
    let folder = Folder::new();
    let (program, mut client, mut guest) = start_with_guest(&folder, 2 * MIB, BAD);
    // In place: it is open.
    let before = std::fs::read(folder.join("disk.img")).unwrap();
    std::fs::write(folder.join("copy.img"), before).unwrap();
    make_two_granules_dirty(&mut client, &mut guest);
    (folder, program, client, guest)
}

/// In a new bitmap.
fn make_two_granules_dirty(client: &mut Client, guest: &mut RequestDriver) {
    add_bitmap(client, "disk", "b");
    guest.request(0, OUT, 3, 1);
    guest.request(0, OUT, 16 * BLOCKS, 2);
    assert_eq!(dirty(client), 2);
}

/// Dirty granules.
fn dirty(client: &mut Client) -> u64 {
    bitmap(client, "disk", "b")["count"].as_u64().unwrap() / GRANULE
}

/// The first number of dirty granules is that after a failed job, and the second one that after a job during which another granule
/// becomes dirty.
#[test]
fn granules_that_were_copied_are_clean_in_the_cases_of_the_mode() {
    let (_folder, program, mut client, mut guest) = with_two_dirty_granules();
    for (sync, mode, after_failure, after_success) in [
        ("incremental", json!("on-success"), 2..3, 1),
        ("incremental", Value::Null, 2..3, 1),
        ("bitmap", json!("on-success"), 2..3, 1),
        ("bitmap", json!("never"), 2..3, 3),
        ("bitmap", json!("always"), 1..2, 1),
        ("full", json!("on-success"), 2..3, 1),
        // The job stops at its first error, and other parts may be under way then.
        ("full", json!("always"), 1..32, 1),
    ] {
        let case = format!("{sync} {mode}");
        let mut arguments = json!({"bitmap": "b", "auto-finalize": false, "target": "bad"});
        if !mode.is_null() {
            arguments["bitmap-mode"] = mode;
        }
        begin_backup(&mut client, sync, arguments.clone());
        assert_eq!(failed(&mut client), "No space left on device", "{case}");
        assert!(after_failure.contains(&dirty(&mut client)), "{case}");
        assert_eq!(bitmap(&mut client, "disk", "b")["busy"], false, "{case}");
        arguments["target"] = "copy".into();
        begin_backup(&mut client, sync, arguments);
        client.wait_for_event("BLOCK_JOB_PENDING");
        assert_eq!(bitmap(&mut client, "disk", "b")["busy"], true, "{case}");
        guest.request(0, OUT, 8 * BLOCKS, 3);
        client.execute("job-finalize id=j");
        succeeded(&mut client);
        assert_eq!(dirty(&mut client), after_success, "{case}");
        // It still records.
        guest.request(0, OUT, 9 * BLOCKS, 3);
        assert_eq!(dirty(&mut client), after_success + 1, "{case}");
        client.execute("block-dirty-bitmap-remove node=disk name=b");
        make_two_granules_dirty(&mut client, &mut guest);
    }
    program.stop();
}

#[test]
fn cancelled_backup_keeps_all_that_was_dirty_and_what_was_written_since() {
    let (_folder, program, mut client, mut guest) = with_two_dirty_granules();
    let slow = json!({"bitmap": "b", "speed": 1});
    begin_backup(&mut client, "incremental", slow);
    guest.request(0, OUT, 8 * BLOCKS, 3);
    client.assert_errors("block-dirty-bitmap-clear node=disk name=b => in use");
    cancel(&mut client);
    assert_eq!(dirty(&mut client), 3);
    program.stop();
}

/// As libvirt does it: a bitmap for one job, which does not record, with what others have.
#[test]
fn bitmap_that_is_merged_for_a_backup_has_what_is_dirty_at_its_moment() {
    let (folder, program, mut client, mut guest) = with_two_dirty_granules();
    let by_hand = json!({"bitmap": "tmp", "auto-finalize": false});
    let backup = copy("incremental", by_hand);
    let actions = json!({"actions": [
        {"type": "block-dirty-bitmap-add", "data": {"node": "disk", "name": "tmp", "disabled": true}},
        {"type": "block-dirty-bitmap-merge", "data": {"node": "disk", "target": "tmp", "bitmaps": ["b"]}},
        {"type": "block-dirty-bitmap-clear", "data": {"node": "disk", "name": "b"}},
        {"type": "blockdev-backup", "data": backup},
    ]});
    client.done("transaction", actions);
    client.wait_for_event("BLOCK_JOB_PENDING");
    std::fs::copy(folder.join("disk.img"), folder.join("moment.img")).unwrap();
    guest.request(0, OUT, 8 * BLOCKS, 3);
    client.execute("job-finalize id=j");
    assert_eq!(succeeded(&mut client)["len"], 2 * GRANULE);
    assert_same_content(&folder, "moment.img", "copy.img");
    assert_eq!(bitmap(&mut client, "disk", "tmp")["count"], 0);
    assert_eq!(dirty(&mut client), 1);
    program.stop();
}

/// As in QEMU: actions are carried out in their order, and a job keeps its bitmap from later ones.
#[test]
fn bitmap_is_not_changed_by_the_actions_after_its_backup() {
    let (_folder, program, mut client, _guest) = with_two_dirty_granules();
    let of_bitmap = |kind: &str| json!({"type": kind, "data": {"node": "disk", "name": "b"}});
    let backup = copy("incremental", json!({"bitmap": "b"}));
    let backup = json!({"type": "blockdev-backup", "data": backup});
    let busy = "Bitmap 'b' is currently in use by another operation and cannot be used";
    for kind in ["clear", "remove", "disable", "enable"] {
        let later = of_bitmap(&format!("block-dirty-bitmap-{kind}"));
        let said = client.fails("transaction", json!({"actions": [backup, later]}));
        assert_eq!(said, busy, "{kind}");
        assert_no_jobs(&mut client);
        assert_eq!(bitmap(&mut client, "disk", "b")["busy"], false);
        assert_eq!(dirty(&mut client), 2);
    }
    let earlier = of_bitmap("block-dirty-bitmap-clear");
    client.done("transaction", json!({"actions": [earlier, backup]}));
    assert_eq!(completed(&mut client)["len"], 0);
    program.stop();
}
