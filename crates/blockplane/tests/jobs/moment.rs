//! A backup has the content of the disk at one moment while the command runs, byte by byte, whatever a guest writes meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::process::Folder;
use crate::upgraded_daemon::Daemon;
use crate::{MIB, completed};

pub const BYTES: u64 = 8 * MIB;
pub const BLOCKS: u64 = BYTES / BLOCK as u64;
pub const INCREMENTS: usize = 4;

/// A disk with these options behind an export on two iothreads, a window between them, and targets.
pub fn line(kind: &str, options: &str) -> String {
    let targets: String = (0..=INCREMENTS)
        .map(|index| format!(" --blockdev file,node-name=t{index},filename=t{index}.img{options}"))
        .collect();
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=disk,filename=disk.img,bitmap-file=bits{options} --blockdev raw,node-name=top,file=disk \
         --export {kind},id=e,node-name=top,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock{targets}"
    )
}

/// Backs up to the target of this number, and returns what the backup must lie between. A full one begins a bitmap at its moment, for
/// incremental ones.
pub fn back_up(client: &mut Client, load: &Load, target: usize, sync: &str) -> (u64, u64) {
    let after = load.now();
    let arguments =
        json!({"job-id": "j", "device": "disk", "target": format!("t{target}"), "sync": sync});
    begin(client, sync, arguments);
    let before = load.now();
    let data = completed(client);
    assert!(data.get("error").is_none(), "{data}");
    assert_eq!(data["len"], data["offset"], "{data}");
    (after, before)
}

/// Begins a backup, as [`back_up`] does.
pub fn begin(client: &mut Client, sync: &str, mut arguments: Value) {
    if sync == "incremental" {
        arguments["bitmap"] = "b".into();
        client.done("blockdev-backup", arguments);
        return;
    }
    let bitmap = json!({"node": "disk", "name": "b", "persistent": true});
    client.done(
        "transaction",
        json!({"actions": [
            {"type": "block-dirty-bitmap-add", "data": bitmap},
            {"type": "blockdev-backup", "data": arguments},
        ]}),
    );
}

/// Gives a target what an increment does not copy.
pub fn copy_base(folder: &Folder, base: usize, target: usize) {
    let [base, target] = [base, target].map(|index| folder.join(&format!("t{index}.img")));
    let base = std::fs::read(base).unwrap();
    // In place: the target is open.
    let target = File::options().write(true).open(target).unwrap();
    target.write_all_at(&base, 0).unwrap();
}

/// A full backup and incremental ones, put together. After those in `upgrades` the daemon is replaced.
fn each_backup_is_of_one_moment(kind: &str, device: Device, options: &str, upgrades: &[usize]) {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    for index in 0..=INCREMENTS {
        folder.image(&format!("t{index}.img"), BYTES);
    }
    let mut daemon = Daemon::start_in(folder, &line(kind, options), &[]);
    let load = Load::begin(daemon.folder.join("e.sock"), device, BLOCKS);
    load.goes_on(5000);
    let mut moments = Vec::new();
    for index in 0..=INCREMENTS {
        let sync = if index == 0 { "full" } else { "incremental" };
        if index > 0 {
            copy_base(&daemon.folder, index - 1, index);
        }
        moments.push(back_up(&mut daemon.client(), &load, index, sync));
        load.goes_on(300);
        if upgrades.contains(&index) {
            daemon.upgrade();
            load.goes_on(300);
        }
    }
    let writes = load.end();
    for (index, (after, before)) in moments.into_iter().enumerate() {
        let content = std::fs::read(daemon.folder.join(&format!("t{index}.img"))).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
    }
    daemon.stop();
}

#[test]
fn backups_of_a_busy_virtio_disk_are_each_of_one_moment() {
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, ",cache.direct=off", &[]);
}

#[test]
fn backups_of_a_busy_disk_are_each_of_one_moment_across_upgrades() {
    each_backup_is_of_one_moment(
        "vhost-user-blk",
        Device::Blk,
        ",cache.direct=off",
        &[0, 2, 3],
    );
}

#[test]
fn backups_of_a_busy_scsi_disk_are_each_of_one_moment() {
    each_backup_is_of_one_moment("vhost-user-scsi", Device::Scsi, ",cache.direct=off", &[]);
}

#[test]
#[ignore = "full run only"]
fn backups_of_a_busy_disk_by_io_uring_are_each_of_one_moment() {
    let options = ",cache.direct=off,aio=io_uring";
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, options, &[]);
}

#[test]
#[ignore = "full run only"]
fn backups_of_a_busy_disk_by_worker_threads_are_each_of_one_moment() {
    let options = ",cache.direct=off,aio=threads";
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, options, &[]);
}
