//! A backup has the content of the disk at one moment while the command runs, byte by byte, whatever a guest writes meanwhile.

use serde_json::json;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::process::Folder;
use crate::upgraded_daemon::Daemon;
use crate::{MIB, completed};

const BYTES: u64 = 32 * MIB;
const BLOCKS: u64 = BYTES / BLOCK as u64;
const INCREMENTS: usize = 5;

/// A disk with these options behind an export on two iothreads, a window between them, and targets.
fn line(kind: &str, options: &str) -> String {
    let targets: String = (0..=INCREMENTS)
        .map(|index| format!(" --blockdev file,node-name=t{index},filename=t{index}.img{options}"))
        .collect();
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=disk,filename=disk.img{options} --blockdev raw,node-name=top,file=disk \
         --export {kind},id=e,node-name=top,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock{targets}"
    )
}

/// Backs up, and returns what the backup must lie between.
fn back_up(client: &mut Client, load: &Load, target: usize, sync: &str) -> (u64, u64) {
    let after = load.now();
    let mut arguments =
        json!({"job-id": "j", "device": "disk", "target": format!("t{target}"), "sync": sync});
    if target > 0 || sync == "incremental" {
        arguments["bitmap"] = "b".into();
    }
    let bitmap = json!({"node": "disk", "name": "b"});
    match target {
        0 => client.done(
            "transaction",
            json!({"actions": [
                {"type": "block-dirty-bitmap-add", "data": bitmap},
                {"type": "blockdev-backup", "data": arguments},
            ]}),
        ),
        _ => client.done("blockdev-backup", arguments),
    };
    let before = load.now();
    let data = completed(client);
    assert!(data.get("error").is_none(), "{data}");
    assert_eq!(data["len"], data["offset"], "{data}");
    (after, before)
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
        // What the increment does not copy has to be there already.
        if index > 0 {
            let base = daemon.folder.join(&format!("t{}.img", index - 1));
            let base = std::fs::read(base).unwrap();
            let target = daemon.folder.join(&format!("t{index}.img"));
            // In place: the target is open.
            let mut target = std::fs::File::options().write(true).open(target).unwrap();
            std::io::Write::write_all(&mut target, &base).unwrap();
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
fn backups_of_a_busy_disk_by_io_uring_are_each_of_one_moment() {
    let options = ",cache.direct=off,aio=io_uring";
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, options, &[]);
}

#[test]
fn backups_of_a_busy_disk_by_worker_threads_are_each_of_one_moment() {
    let options = ",cache.direct=off,aio=threads";
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, options, &[]);
}
