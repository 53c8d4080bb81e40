//! A daemon that is upgraded after backups that clients pull, and killed during one, and the backups afterwards.

use nbd::wire::command;
use serde_json::json;
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{RecordingWriter, assert_is_of_one_moment};

use crate::client::Client;
use crate::incremental::{
    BYTES, Backup, assert_backups_are_of_their_moments, bitmap, copy, folder, line,
};
use crate::process::Folder;
use crate::raw_client::{RawClient, request};

/// The backup that the kill interrupts.
const INTERRUPTED: usize = 2;
const LAST: usize = 5;

/// Full and incremental backups, pulled while a guest writes without a pause; after each of them the daemon is upgraded, and in the middle
/// of one it is killed.
#[test]
fn after_a_kill_during_a_pull_bitmaps_are_inconsistent_and_the_next_backup_is_a_full_one() {
    let line =
        line("--blockdev file,node-name=disk,filename=disk.img,bitmap-file=bits,cache.direct=off");
    let mut daemon = Daemon::start_in(folder(), &line, &[]);
    let load = RecordingWriter::start_with(&daemon.folder, Device::Blk, BYTES, true);
    load.wait_for_progress(500);
    let (mut moments, mut killed) = (Vec::new(), None);
    for number in 0..=LAST {
        let backup = Backup {
            number,
            is_increment: number != 0 && number != INTERRUPTED + 1,
            has_persistent_bitmap: true,
        };
        let mut client = daemon.client();
        let moment = backup.begin(&mut client, &load);
        load.wait_for_progress(300);
        if number == INTERRUPTED {
            let Some(_waiting) = pull_half(backup, &daemon.folder) else {
                return;
            };
            let after = load.now();
            daemon.kill();
            let before = load.now();
            let disk = std::fs::read(daemon.folder.join("disk.img")).unwrap();
            killed = Some((disk, after, before));
            daemon.restart(&line);
            load.wait_for_progress(300);
            remove_inconsistent_bitmaps(&mut daemon.client());
            continue;
        }
        moments.push((number, moment));
        if backup.pull(&daemon.folder).is_none() {
            return;
        }
        backup.end(&mut client);
        load.wait_for_progress(300);
        // The bitmap that records goes to the new process.
        daemon.upgrade();
    }
    let end = load.now();
    let writes = load.stop();
    let (disk, after, before) = killed.unwrap();
    assert_is_of_one_moment(&disk, &writes, after, before);
    assert_backups_are_of_their_moments(&daemon.folder, &moments, &writes);
    let disk = std::fs::read(daemon.folder.join("disk.img")).unwrap();
    let last = writes.iter().filter_map(|write| write.answered).max();
    assert_is_of_one_moment(&disk, &writes, end, last.unwrap());
    daemon.stop();
}

/// Copies half of what has changed since the last backup. The client waits for more when this returns.
fn pull_half(backup: Backup, folder: &Folder) -> Option<RawClient> {
    let (to, dirty) = backup.begin_increment(folder)?;
    let (first, second) = dirty.split_at(dirty.len() / 2);
    let mut reader = RawClient::enter(folder, "backup");
    copy(&mut reader, first, &to);
    for &range in second {
        reader.send(&request(command::READ, 0, 1, range));
    }
    Some(reader)
}

/// Removes the bitmaps of the interrupted backup and the one before, which have missed writes. No client can see what has changed by
/// them.
fn remove_inconsistent_bitmaps(client: &mut Client) {
    let disk = client.node("disk");
    let bitmaps = disk["dirty-bitmaps"].as_array().unwrap();
    assert_eq!(bitmaps.len(), 2, "{bitmaps:?}");
    for found in bitmaps {
        assert_eq!(found["inconsistent"], true, "{found}");
    }
    for number in [INTERRUPTED - 1, INTERRUPTED] {
        let export = json!({"type": "nbd", "id": "b", "node-name": "disk", "name": "backup",
            "bitmaps": [bitmap(number)]});
        let refused = client.fails("block-export-add", export);
        assert!(refused.contains("inconsistent"), "{refused}");
        client.done("block-dirty-bitmap-remove", bitmap(number));
    }
}
