//! Full and incremental backups that clients pull over NBD while a guest writes to the disk without a pause.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::blocks::{BLOCK, Write};
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{
    BUSY_EXPORT, RecordingWriter, assert_is_of_one_moment,
};

use crate::client::Client;
use crate::clients::run_if_installed as run;
use crate::process::Folder;
use crate::raw_client::RawClient;
use crate::{MIB, SERVER, cancel_job, keep_old_data, remove_export};

pub const BYTES: u64 = 8 * MIB;
const URI: &str = "nbd+unix:///backup?socket=nbd";

/// A backup that clients pull, of a series. The bitmap of its number has what is written after it.
#[derive(Clone, Copy)]
pub struct Backup {
    pub number: usize,
    /// It copies what has changed since the one before, not all of the disk.
    pub is_increment: bool,
    /// Its bitmap outlives the daemon.
    pub has_persistent_bitmap: bool,
}

impl Backup {
    fn base(self) -> Option<usize> {
        self.is_increment.then(|| self.number - 1)
    }

    /// Lets clients see the disk as of now, and what has changed since the last backup. Returns what the moment lies between.
    pub fn begin(self, client: &mut Client, load: &RecordingWriter) -> (u64, u64) {
        let mut new = bitmap(self.number);
        new["granularity"] = BLOCK.into();
        new["persistent"] = self.has_persistent_bitmap.into();
        let mut actions = vec![json!({"type": "block-dirty-bitmap-add", "data": new})];
        let old = self.base().map(bitmap);
        if let Some(old) = &old {
            actions.push(json!({"type": "block-dirty-bitmap-disable", "data": old}));
        }
        let backup = keep_old_data("disk", "old-data");
        actions.push(json!({"type": "blockdev-backup", "data": backup}));
        let after = load.now();
        client.done("transaction", json!({"actions": actions}));
        let before = load.now();
        let snapshot =
            json!({"driver": "snapshot-access", "node-name": "snapshot", "file": "disk"});
        client.done("blockdev-add", snapshot);
        let export = json!({"type": "nbd", "id": "b", "node-name": "snapshot", "name": "backup",
            "bitmaps": Vec::from_iter(old)});
        client.done("block-export-add", export);
        (after, before)
    }

    /// Pulls it: all of the disk, or what has changed since the last one, which is the same. `None`, with a report, if a program is not
    /// installed.
    pub fn pull(self, folder: &Folder) -> Option<()> {
        let name = format!("backup{}", self.number);
        if self.base().is_none() {
            run(folder, "nbdcopy", &["--connections=2", URI, &name])?;
            return Some(());
        }
        let (to, dirty) = self.begin_increment(folder)?;
        copy(&mut RawClient::enter(folder, "backup"), &dirty, &to);
        run(folder, "nbdcopy", &["--connections=2", URI, "whole"])?;
        let [found, whole] = [&name, "whole"].map(|name| std::fs::read(folder.join(name)).unwrap());
        assert!(found == whole, "{name}");
        Some(())
    }

    /// Makes a copy of the backup before, and finds the ranges that have changed since.
    pub fn begin_increment(self, folder: &Folder) -> Option<(File, Vec<(u64, u32)>)> {
        let base = self.base().unwrap();
        let [from, to] = [base, self.number].map(|number| folder.join(&format!("backup{number}")));
        std::fs::copy(from, &to).unwrap();
        let dirty = dirty_ranges(folder, base)?;
        assert!(!dirty.is_empty(), "the guest has written");
        Some((File::options().write(true).open(to).unwrap(), dirty))
    }

    /// Ends what clients see.
    pub fn end(self, client: &mut Client) {
        remove_export(client, "b");
        client.execute("blockdev-del node-name=snapshot");
        cancel_job(client);
        if let Some(old) = self.base() {
            client.done("block-dirty-bitmap-remove", bitmap(old));
        }
    }
}

/// The name of the bitmap of a backup.
pub fn bitmap(number: usize) -> Value {
    json!({"node": "disk", "name": number.to_string()})
}

/// The dirty ranges of a bitmap, as nbdinfo shows them.
fn dirty_ranges(folder: &Folder, name: usize) -> Option<Vec<(u64, u32)>> {
    let map = format!("--map=qemu:dirty-bitmap:{name}");
    let map = run(folder, "nbdinfo", &[&map, "--json", URI])?;
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let dirty = map.iter().filter(|piece| piece["type"] == 1);
    let ranges = dirty.map(|piece| {
        let [offset, length] = ["offset", "length"].map(|key| piece[key].as_u64().unwrap());
        (offset, u32::try_from(length).unwrap())
    });
    Some(ranges.collect())
}

/// Copies ranges of the export into a backup.
pub fn copy(reader: &mut RawClient, ranges: &[(u64, u32)], to: &File) {
    for &(offset, len) in ranges {
        to.write_all_at(&reader.read(offset, len), offset).unwrap();
    }
}

/// Options for this node `disk` behind an export on two iothreads, a node for its old data, and a server.
pub fn line(disk: &str) -> String {
    format!(
        "{disk} --blockdev file,node-name=old-data,filename=old-data.img,cache.direct=off {SERVER} {BUSY_EXPORT}"
    )
}

/// A folder with the image of the disk, and one for its old data.
pub fn folder() -> Folder {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    folder.image("old-data.img", BYTES);
    folder
}

/// The backups of this number are each of one moment.
#[track_caller]
pub fn assert_backups_are_of_their_moments(
    folder: &Folder,
    moments: &[(usize, (u64, u64))],
    writes: &[Write],
) {
    for &(number, (after, before)) in moments {
        let content = std::fs::read(folder.join(&format!("backup{number}"))).unwrap();
        assert_is_of_one_moment(&content, writes, after, before);
    }
}

/// At any moment some writes are under way.
#[test]
fn backups_of_a_slow_disk_have_what_is_written_around_their_moment() {
    let disk = "--blockdev file,node-name=image,filename=disk.img,cache.direct=off \
         --blockdev blkdebug,node-name=disk,image=image,\
inject-error.0.iotype=write,inject-error.0.action=delay,inject-error.0.delay-ns=3000000";
    let daemon = Daemon::start_in(folder(), &line(disk), &[]);
    let load = RecordingWriter::start(&daemon.folder, Device::Blk, BYTES);
    load.wait_for_progress(500);
    let mut moments = Vec::new();
    let mut client = daemon.client();
    for number in 0..=3 {
        let backup = Backup {
            number,
            is_increment: number > 0,
            has_persistent_bitmap: false,
        };
        moments.push((number, backup.begin(&mut client, &load)));
        load.wait_for_progress(300);
        if backup.pull(&daemon.folder).is_none() {
            return;
        }
        backup.end(&mut client);
        load.wait_for_progress(300);
    }
    assert_backups_are_of_their_moments(&daemon.folder, &moments, &load.stop());
    daemon.stop();
}
