//! A backup has the content of the disk at one moment while the command runs, byte by byte, whatever a guest writes meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use test_support::upgraded_daemon::Daemon;
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{QUEUES, RecordingWriter, assert_is_of_one_moment};

use crate::client::Client;
use crate::process::Folder;
use crate::{MIB, bitmap, succeeded};

const BYTES: u64 = 8 * MIB;
const BACKUPS: usize = 6;
/// The backup that a kill interrupts.
const INTERRUPTED: usize = 3;

/// A disk with these options behind an export on two iothreads, a window between them, and targets.
fn line(kind: &str, options: &str) -> String {
    let targets: String = (0..BACKUPS)
        .map(|index| format!(" --blockdev file,node-name=t{index},filename=t{index}.img{options}"))
        .collect();
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 \
         --blockdev file,node-name=disk,filename=disk.img,bitmap-file=bits{options} --blockdev raw,node-name=top,file=disk \
         --export {kind},id=e,node-name=top,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock{targets}"
    )
}

fn incremental(target: usize) -> Value {
    json!({"job-id": "j", "device": "disk", "target": format!("t{target}"), "sync": "incremental", "bitmap": "b"})
}

/// Begins a backup. A full one begins a bitmap at its moment, for incremental ones.
fn begin(client: &mut Client, target: usize, is_full: bool) {
    if !is_full {
        client.done("blockdev-backup", incremental(target));
        return;
    }
    let full =
        json!({"job-id": "j", "device": "disk", "target": format!("t{target}"), "sync": "full"});
    let bitmap = json!({"node": "disk", "name": "b", "persistent": true});
    let actions = json!([
        {"type": "block-dirty-bitmap-add", "data": bitmap},
        {"type": "blockdev-backup", "data": full},
    ]);
    client.done("transaction", json!({"actions": actions}));
}

/// Gives a target what an increment does not copy.
fn copy_base(folder: &Folder, target: usize) {
    let [base, target] = [target - 1, target].map(|index| folder.join(&format!("t{index}.img")));
    let base = std::fs::read(base).unwrap();
    // In place: the target is open.
    let target = File::options().write(true).open(target).unwrap();
    target.write_all_at(&base, 0).unwrap();
}

/// Kills the daemon in the middle of a slow backup. Its bitmap cannot be used any more.
fn interrupt_by_kill(daemon: &mut Daemon, load: &RecordingWriter, line: &str) {
    let mut slow = incremental(INTERRUPTED);
    slow["speed"] = (1 << 16).into();
    daemon.client().done("blockdev-backup", slow);
    load.wait_for_progress(300);
    daemon.kill_and_restart(line);
    load.wait_for_progress(300);
    let mut client = daemon.client();
    assert_eq!(bitmap(&mut client, "disk", "b")["inconsistent"], true);
    let refused = client.fails("blockdev-backup", incremental(INTERRUPTED));
    assert!(refused.contains("inconsistent"), "{refused}");
    client.execute("block-dirty-bitmap-remove node=disk name=b");
}

/// A full backup and incremental ones, put together. With `faults` the daemon is upgraded after each of them, and killed during one:
/// the next one is a full one again.
fn each_backup_is_of_one_moment(kind: &str, device: Device, options: &str, faults: bool) {
    let folder = Folder::new();
    folder.image("disk.img", BYTES);
    (0..BACKUPS).for_each(|index| folder.image(&format!("t{index}.img"), BYTES));
    let line = line(kind, options);
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let load = RecordingWriter::start_with(&daemon.folder, device, BYTES, faults);
    load.wait_for_progress(5000);
    let mut moments = Vec::new();
    let mut is_full = true;
    for index in 0..BACKUPS {
        if faults && index == INTERRUPTED {
            interrupt_by_kill(&mut daemon, &load, &line);
            is_full = true;
            continue;
        }
        if !is_full {
            copy_base(&daemon.folder, index);
        }
        let mut client = daemon.client();
        let after = load.now();
        begin(&mut client, index, is_full);
        let before = load.now();
        let data = succeeded(&mut client);
        assert_eq!(data["len"], data["offset"], "{data}");
        moments.push((index, after, before));
        is_full = false;
        load.wait_for_progress(300);
        if faults {
            daemon.upgrade();
            load.wait_for_progress(300);
        }
    }
    let writes = load.stop();
    for (index, after, before) in moments {
        let content = std::fs::read(daemon.folder.join(&format!("t{index}.img"))).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
    }
    daemon.stop();
}

#[test]
fn backups_of_a_busy_virtio_disk_are_each_of_one_moment_across_upgrades_and_a_kill() {
    each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, ",cache.direct=off", true);
}

#[test]
fn backups_of_a_busy_scsi_disk_are_each_of_one_moment() {
    each_backup_is_of_one_moment("vhost-user-scsi", Device::Scsi, ",cache.direct=off", false);
}

#[test]
#[ignore = "full run only"]
fn backups_of_a_busy_disk_by_each_kind_of_aio_are_each_of_one_moment() {
    for aio in ["io_uring", "threads"] {
        let options = format!(",cache.direct=off,aio={aio}");
        each_backup_is_of_one_moment("vhost-user-blk", Device::Blk, &options, false);
    }
}
