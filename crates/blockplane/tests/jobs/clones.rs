//! Jobs between files of one file system that can share extents: parts are cloned. Elsewhere they are copied.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use test_support::report;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::ends::assert_holds_all_writes;
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::mirror::MODES;
use crate::process::{Folder, Process};
use crate::{MIB, assert_same_content, backup, bitmap, completed, start};

const BYTES: u64 = 64 * MIB;
/// The disk has data up to here, then a hole, then data in the last block.
const DATA_BYTES: u64 = 32 * MIB;
/// What a file system may use besides data.
const METADATA_BYTES: u64 = 4 * MIB;

/// File systems that share extents.
const SHARING: [&str; 2] = ["xfs", "btrfs"];

/// A file system in the folder `fs` of another one, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// `None`, reported: this machine cannot make or mount such a file system.
    fn new(folder: &Folder, kind: &str) -> Option<Self> {
        let path = folder.join("fs");
        std::fs::create_dir(&path).unwrap();
        let steps = match kind {
            "tmpfs" => vec!["mount -t tmpfs tmpfs fs".to_owned()],
            _ => {
                folder.image("fs.img", 512 * MIB);
                let make = format!("mkfs.{kind} -q fs.img");
                vec![make, "mount -o loop fs.img fs".to_owned()]
            }
        };
        for step in steps {
            let mut words = step.split(' ');
            let mut command = Command::new(words.next().unwrap());
            let done = command.args(words).current_dir(folder.path()).output();
            if !done.as_ref().is_ok_and(|done| done.status.success()) {
                report::not_run(&format!("no {kind}: {step}: {done:?}"));
                return None;
            }
        }
        Some(Mount(path))
    }

    /// Bytes that are in use, when everything is written.
    fn used_bytes(&self) -> u64 {
        let synced = Command::new("sync").arg("-f").arg(&self.0).status();
        assert!(synced.unwrap().success());
        let found = rustix::fs::statvfs(&self.0).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A disk of data, a hole and a last block of data.
fn write_disk(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(BYTES).unwrap();
    let data: Vec<u8> = (0..DATA_BYTES)
        .map(|at| u8::try_from(at / 512 % 251 + 1).unwrap())
        .collect();
    file.write_all_at(&data, 0).unwrap();
    file.write_all_at(&data[..4096], BYTES - 4096).unwrap();
    file.sync_all().unwrap();
}

/// Two windows onto a disk with content and an empty one, which have these options.
fn start_in(folder: &Folder, disk: &str, copy: &str, options: &str) -> (Process, Client) {
    write_disk(&folder.join(disk));
    folder.image(copy, BYTES);
    start(
        folder,
        &format!(
            "--blockdev file,node-name=below,filename={disk} --blockdev raw,node-name=disk,file=below \
             --blockdev file,node-name=copy,filename={copy}{options}"
        ),
    )
}

/// Runs a job to its end. Both disks have the same content then.
#[track_caller]
fn run_job(client: &mut Client, job: &str, others: Value) {
    client.done(job, backup("full", others));
    if job == "blockdev-mirror" {
        client.wait_for_event("BLOCK_JOB_READY");
        client.done("block-job-cancel", json!({"device": "j"}));
    }
    let data = completed(client);
    assert!(data.get("error").is_none(), "{data}");
}

/// With direct I/O and through the page cache, and in the sandbox, which is on.
#[test]
fn copy_on_a_file_system_with_reflinks_takes_no_space_and_has_the_same_content() {
    for kind in SHARING {
        for (job, options) in [
            ("blockdev-backup", ",discard=unmap"),
            ("blockdev-backup", ",discard=unmap,cache.direct=off"),
            ("blockdev-mirror", ",discard=unmap"),
        ] {
            let folder = Folder::new();
            let Some(mount) = Mount::new(&folder, kind) else {
                break;
            };
            let (program, mut client) = start_in(&folder, "fs/disk.img", "fs/copy.img", options);
            let before = mount.used_bytes();
            run_job(&mut client, job, json!({}));
            let added = mount.used_bytes() - before;
            assert!(added < METADATA_BYTES, "{kind}, {job}{options}: {added}");
            assert_same_content(&folder, "fs/disk.img", "fs/copy.img");
            program.stop();
        }
    }
}

#[test]
fn copy_has_its_own_space_if_the_target_keeps_space_or_the_job_is_not_to_clone() {
    for kind in SHARING {
        for (options, others) in [
            ("", json!({})),
            (
                ",discard=unmap",
                json!({"x-perf": {"use-copy-range": false}}),
            ),
        ] {
            let folder = Folder::new();
            let Some(mount) = Mount::new(&folder, kind) else {
                break;
            };
            let (program, mut client) = start_in(&folder, "fs/disk.img", "fs/copy.img", options);
            let before = mount.used_bytes();
            run_job(&mut client, "blockdev-backup", others);
            let added = mount.used_bytes() - before;
            assert!(added >= DATA_BYTES, "{kind}{options}: {added}");
            assert!(added < DATA_BYTES + METADATA_BYTES, "the hole: {added}");
            assert_same_content(&folder, "fs/disk.img", "fs/copy.img");
            program.stop();
        }
    }
}

/// On the file system of temporary files, in memory, and from one file system to another.
#[test]
fn copy_is_right_where_nothing_can_be_cloned() {
    for (fs, disk, copy) in [
        ("tmpfs", "fs/disk.img", "fs/copy.img"),
        ("tmpfs", "disk.img", "copy.img"),
        ("ext4", "fs/disk.img", "fs/copy.img"),
        ("xfs", "fs/disk.img", "copy.img"),
    ] {
        let folder = Folder::new();
        let Some(_mount) = Mount::new(&folder, fs) else {
            continue;
        };
        for job in ["blockdev-backup", "blockdev-mirror"] {
            let _ = std::fs::remove_file(folder.join(copy));
            let (program, mut client) = start_in(&folder, disk, copy, ",discard=unmap");
            run_job(&mut client, job, json!({}));
            assert_same_content(&folder, disk, copy);
            program.stop();
        }
    }
}

/// The last part of the disk is no whole block of the file system.
#[test]
fn copy_of_a_disk_that_ends_within_a_block_is_complete() {
    for kind in SHARING {
        let folder = Folder::new();
        let Some(_mount) = Mount::new(&folder, kind) else {
            continue;
        };
        let content: Vec<u8> = (0..4 * MIB + 512)
            .map(|at| u8::try_from(at / 512 % 251 + 1).unwrap())
            .collect();
        std::fs::write(folder.join("fs/disk.img"), &content).unwrap();
        folder.image("fs/copy.img", 8 * MIB);
        let (program, mut client) = start(
            &folder,
            "--blockdev file,node-name=disk,filename=fs/disk.img,cache.direct=off \
             --blockdev file,node-name=copy,filename=fs/copy.img,cache.direct=off,discard=unmap",
        );
        run_job(&mut client, "blockdev-backup", json!({}));
        let copied = std::fs::read(folder.join("fs/copy.img")).unwrap();
        assert!(copied[..content.len()] == content[..]);
        assert!(copied[content.len()..].iter().all(|byte| *byte == 0));
        program.stop();
    }
}

#[test]
fn bitmap_of_the_target_has_what_was_cloned() {
    for kind in SHARING {
        let folder = Folder::new();
        let Some(_mount) = Mount::new(&folder, kind) else {
            continue;
        };
        let (program, mut client) =
            start_in(&folder, "fs/disk.img", "fs/copy.img", ",discard=unmap");
        let changes = json!({"node": "copy", "name": "b", "granularity": 65536});
        client.done("block-dirty-bitmap-add", changes);
        run_job(&mut client, "blockdev-backup", json!({}));
        let count = bitmap(&mut client, "copy", "b")["count"].as_u64().unwrap();
        assert!(count >= DATA_BYTES, "{kind}: {count}");
        program.stop();
    }
}

/// A guest that writes without a pause, on a file system that shares extents.
fn start_busy(folder: &Folder) -> (Process, Client, Load) {
    const BUSY_BYTES: u64 = 32 * MIB;
    folder.image("fs/disk.img", BUSY_BYTES);
    folder.image("fs/copy.img", BUSY_BYTES);
    let (program, client) = start(
        folder,
        &format!(
            "--object iothread,id=io0 --object iothread,id=io1 \
             --blockdev file,node-name=disk,filename=fs/disk.img \
             --blockdev file,node-name=copy,filename=fs/copy.img,discard=unmap \
             --export vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
        ),
    );
    let blocks = BUSY_BYTES / BLOCK as u64;
    let load = Load::begin(folder.join("e.sock"), Device::Blk, blocks);
    load.goes_on(2 * blocks);
    (program, client, load)
}

/// The speed makes the job last, so that the guest writes to what is not cloned yet.
#[test]
fn backup_by_cloning_of_a_busy_disk_is_of_one_moment() {
    for kind in SHARING {
        let folder = Folder::new();
        let Some(_mount) = Mount::new(&folder, kind) else {
            continue;
        };
        let (program, mut client, load) = start_busy(&folder);
        let copies = [0, 64 * MIB, 16 * MIB].map(|speed| {
            let after = load.now();
            client.done("blockdev-backup", backup("full", json!({"speed": speed})));
            let before = load.now();
            let data = completed(&mut client);
            assert!(data.get("error").is_none(), "{data}");
            load.goes_on(100);
            let content = std::fs::read(folder.join("fs/copy.img")).unwrap();
            (content, after, before)
        });
        let writes = load.end();
        for (content, after, before) in copies {
            assert_is_of_one_moment(&content, &writes, after, before);
        }
        program.stop();
    }
}

#[test]
fn guest_that_writes_goes_over_to_a_clone_of_its_disk() {
    for (kind, mode) in SHARING.map(|kind| MODES.map(|mode| (kind, mode))).concat() {
        let folder = Folder::new();
        let Some(_mount) = Mount::new(&folder, kind) else {
            continue;
        };
        let (program, mut client, load) = start_busy(&folder);
        let arguments = backup("full", json!({"copy-mode": mode, "speed": 64 * MIB}));
        client.done("blockdev-mirror", arguments);
        load.goes_on(100);
        client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
        client.wait_for_event("BLOCK_JOB_READY");
        client.done("job-complete", json!({"id": "j"}));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        load.goes_on(100);
        let writes = load.end();
        assert_holds_all_writes(&folder, "fs/copy.img", &writes);
        program.stop();
    }
}
