//! Full and incremental backups that clients pull over NBD while a guest writes to the disk without a pause.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nbd::wire::command;
use serde_json::{Value, json};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::clients::run;
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::process::Folder;
use crate::raw_client::{RawClient, request};
use crate::upgraded_daemon::Daemon;
use crate::{MIB, SERVER};

const BYTES: u64 = 16 * MIB;
const BLOCKS: u64 = BYTES / BLOCK as u64;
const INCREMENTS: usize = 5;
const URI: &str = "nbd+unix:///backup?socket=nbd";

/// Lets clients see the disk as of now, and what has changed since the last backup. Returns what the moment lies between.
fn begin(client: &mut Client, load: &Load, turn: usize) -> (u64, u64) {
    let bitmap = |turn: usize| json!({"node": "disk", "name": turn.to_string()});
    let mut new = bitmap(turn);
    new["granularity"] = BLOCK.into();
    let mut actions = vec![json!({"type": "block-dirty-bitmap-add", "data": new})];
    let old = turn.checked_sub(1).map(bitmap);
    if let Some(old) = &old {
        actions.push(json!({"type": "block-dirty-bitmap-disable", "data": old}));
    }
    let backup = json!({"job-id": "j", "device": "disk", "target": "old-data", "sync": "none"});
    actions.push(json!({"type": "blockdev-backup", "data": backup}));
    let after = load.now();
    client.done("transaction", json!({"actions": actions}));
    let before = load.now();
    let snapshot = json!({"driver": "snapshot-access", "node-name": "snapshot", "file": "disk"});
    client.done("blockdev-add", snapshot);
    let export = json!({"type": "nbd", "id": "b", "node-name": "snapshot", "name": "backup",
        "bitmaps": Vec::from_iter(old)});
    client.done("block-export-add", export);
    (after, before)
}

/// Ends what clients see.
fn end(client: &mut Client, turn: usize) {
    client.done("block-export-del", json!({"id": "b", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "b");
    client.done("blockdev-del", json!({"node-name": "snapshot"}));
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    if let Some(old) = turn.checked_sub(1) {
        let old = json!({"node": "disk", "name": old.to_string()});
        client.done("block-dirty-bitmap-remove", old);
    }
}

/// The dirty ranges of a bitmap, as nbdinfo shows them.
fn dirty_ranges(folder: &Folder, name: usize) -> Option<Vec<(u64, u32)>> {
    let map = format!("--map=qemu:dirty-bitmap:{name}");
    let map = run(folder, "nbdinfo", &[&map, "--json", URI])?;
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let dirty = map.iter().filter(|piece| piece["type"] == 1);
    let ranges = dirty.map(|piece| {
        let length = piece["length"].as_u64().unwrap();
        (
            piece["offset"].as_u64().unwrap(),
            u32::try_from(length).unwrap(),
        )
    });
    Some(ranges.collect())
}

/// Copies ranges of the export into a backup.
fn copy(folder: &Folder, ranges: &[(u64, u32)], to: &File) {
    let mut reader = RawClient::enter(folder, "backup");
    for &(offset, len) in ranges {
        reader.send(&request(command::READ, 0, 1, (offset, len)));
        let (_, error, data) = reader.reply(len as usize);
        assert_eq!(error, 0);
        to.write_all_at(&data, offset).unwrap();
    }
}

/// Pulls the backup of this number: all of the disk, or what has changed since the last one, which is the same. `None`, with a report,
/// if a program is not installed.
fn pull(folder: &Folder, turn: usize) -> Option<()> {
    let name = format!("backup{turn}");
    let Some(last) = turn.checked_sub(1) else {
        run(folder, "nbdcopy", &["--connections=2", URI, &name])?;
        return Some(());
    };
    std::fs::copy(folder.join(&format!("backup{last}")), folder.join(&name)).unwrap();
    let dirty = dirty_ranges(folder, last)?;
    assert!(!dirty.is_empty(), "the guest has written");
    let to = File::options().write(true).open(folder.join(&name));
    copy(folder, &dirty, &to.unwrap());
    run(folder, "nbdcopy", &["--connections=2", URI, "whole"])?;
    let [increments, whole] = [&name, "whole"].map(|name| std::fs::read(folder.join(name)));
    assert!(increments.unwrap() == whole.unwrap(), "backup {turn}");
    Some(())
}

/// A full backup and incremental ones of the node `disk`, which these options define. In the middle the daemon is replaced, if it can be.
fn each_backup_is_of_one_moment(disk: &str, is_upgraded: bool) {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    folder.image("old-data.img", BYTES);
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {disk} \
         --blockdev file,node-name=old-data,filename=old-data.img,cache.direct=off {SERVER} \
         --export vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
    );
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let load = Load::begin(daemon.folder.join("e.sock"), Device::Blk, BLOCKS);
    load.goes_on(500);
    let mut moments = Vec::new();
    for turn in 0..=INCREMENTS {
        let mut client = daemon.client();
        moments.push(begin(&mut client, &load, turn));
        load.goes_on(300);
        if pull(&daemon.folder, turn).is_none() {
            return;
        }
        end(&mut client, turn);
        load.goes_on(300);
        if turn == 2 && is_upgraded {
            // The bitmap that records goes to the new process.
            daemon.upgrade();
        }
    }
    let writes = load.end();
    for (turn, (after, before)) in moments.into_iter().enumerate() {
        let content = std::fs::read(daemon.folder.join(&format!("backup{turn}"))).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
    }
    daemon.stop();
}

#[test]
fn a_full_and_five_incremental_backups_of_a_busy_disk_are_each_of_one_moment() {
    let disk = "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off";
    each_backup_is_of_one_moment(disk, true);
}

/// At any moment some writes are under way.
#[test]
fn backups_of_a_slow_disk_have_what_is_written_around_their_moment() {
    let disk = "--blockdev file,node-name=image,filename=disk.img,cache.direct=off \
         --blockdev blkdebug,node-name=disk,image=image,\
inject-error.0.iotype=write,inject-error.0.action=delay,inject-error.0.delay-ns=3000000";
    each_backup_is_of_one_moment(disk, false);
}
