//! Jobs between files of one file system that can share extents: parts are cloned. Elsewhere they are copied.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use test_support::report;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{
    BUSY_EXPORT, RecordingWriter, assert_is_of_one_moment,
};

use crate::client::Client;
use crate::ends::assert_holds_all_writes;
use crate::process::{Folder, Process};
use crate::{
    MIB, MODES, add_bitmap, assert_same_content, begin_backup, begin_mirror, bitmap, complete,
    content, copy, start, succeeded,
};

const BYTES: u64 = 16 * MIB;
/// The disk has data up to here, then a hole, then data in the last block.
const DATA_BYTES: u64 = 8 * MIB;
/// What a file system may use besides data.
const METADATA_BYTES: u64 = 4 * MIB;

/// File systems that share extents.
const SHARING: [&str; 2] = ["xfs", "btrfs"];

/// A file system in memory, in the folder `fs` of another one, unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    /// `None`, reported: this machine cannot make or mount such a file system.
    fn new(folder: &Folder, kind: &str) -> Option<Self> {
        let mount = Mount(folder.path().to_owned());
        let make = format!("mkfs.{kind} -q memory/image");
        let steps = match kind {
            "tmpfs" => vec!["mkdir fs", "mount -t tmpfs tmpfs fs"],
            _ => vec![
                "mkdir memory fs",
                "mount -t tmpfs tmpfs memory",
                "truncate --size 512M memory/image",
                &make,
                "mount -o loop memory/image fs",
            ],
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
        Some(mount)
    }

    /// Bytes that are in use, when everything is written.
    fn used_bytes(&self) -> u64 {
        let path = self.0.join("fs");
        let synced = Command::new("sync").arg("-f").arg(&path).status();
        assert!(synced.unwrap().success());
        let found = rustix::fs::statvfs(&path).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for name in ["fs", "memory"] {
            let mut umount = Command::new("umount");
            let _ = umount.arg("-l").arg(self.0.join(name)).output();
        }
    }
}

/// A disk of data, a hole and a last block of data.
fn write_disk(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).unwrap();
    file.set_len(BYTES).unwrap();
    let data = content(DATA_BYTES);
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
    client.done(job, copy("full", others));
    if job == "blockdev-mirror" {
        client.wait_for_event("BLOCK_JOB_READY");
        client.execute("block-job-cancel device=j");
    }
    succeeded(client);
}

/// With direct I/O and through the page cache, and in the sandbox, which is on. The copy has its own space if the target keeps space or
/// the job is not to clone.
#[test]
fn copy_on_a_file_system_with_reflinks_takes_no_space_and_has_the_same_content() {
    for kind in SHARING {
        let folder = Folder::new();
        let Some(mount) = Mount::new(&folder, kind) else {
            continue;
        };
        let cached = ",discard=unmap,cache.direct=off";
        let not_to_clone = json!({"x-perf": {"use-copy-range": false}});
        let cases = [
            ("blockdev-backup", ",discard=unmap", json!({}), true),
            ("blockdev-backup", cached, json!({}), true),
            ("blockdev-mirror", ",discard=unmap", json!({}), true),
            ("blockdev-backup", "", json!({}), false),
            ("blockdev-backup", ",discard=unmap", not_to_clone, false),
        ];
        for (index, (job, options, others, is_cloned)) in cases.into_iter().enumerate() {
            let [disk, copy] = ["disk", "copy"].map(|name| format!("fs/{name}{index}.img"));
            let (program, mut client) = start_in(&folder, &disk, &copy, options);
            add_bitmap(&mut client, "copy", "b");
            let before = mount.used_bytes();
            run_job(&mut client, job, others);
            let added = mount.used_bytes() - before;
            // The hole takes no space in any case.
            let least = if is_cloned { 0 } else { DATA_BYTES };
            let expected = least..least + METADATA_BYTES;
            assert!(expected.contains(&added), "{kind}, {job}{options}: {added}");
            assert_same_content(&folder, &disk, &copy);
            // The target's bitmap has what was cloned.
            let count = bitmap(&mut client, "copy", "b")["count"].as_u64();
            assert!(count >= Some(DATA_BYTES), "{kind}, {job}: {count:?}");
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
        let mut expected = content(4 * MIB + 512);
        std::fs::write(folder.join("fs/disk.img"), &expected).unwrap();
        folder.image("fs/copy.img", 8 * MIB);
        let (program, mut client) = start(
            &folder,
            "--blockdev file,node-name=disk,filename=fs/disk.img,cache.direct=off \
             --blockdev file,node-name=copy,filename=fs/copy.img,cache.direct=off,discard=unmap",
        );
        run_job(&mut client, "blockdev-backup", json!({}));
        expected.resize(8 << 20, 0);
        assert!(std::fs::read(folder.join("fs/copy.img")).unwrap() == expected);
        program.stop();
    }
}

/// A guest that writes without a pause, on a file system that shares extents.
fn start_busy(folder: &Folder) -> (Process, Client, RecordingWriter) {
    const BUSY_BYTES: u64 = 8 * MIB;
    folder.image("fs/disk.img", BUSY_BYTES);
    folder.image("fs/copy.img", BUSY_BYTES);
    let line = format!(
        "--blockdev file,node-name=disk,filename=fs/disk.img \
         --blockdev file,node-name=copy,filename=fs/copy.img,discard=unmap {BUSY_EXPORT}"
    );
    let (program, client) = start(folder, &line);
    let load = RecordingWriter::start(folder, Device::Blk, BUSY_BYTES);
    load.wait_for_progress(2 * BUSY_BYTES / BLOCK as u64);
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
        let copies = [0, 16 * MIB, 4 * MIB].map(|speed| {
            let after = load.now();
            begin_backup(&mut client, "full", json!({"speed": speed}));
            let before = load.now();
            succeeded(&mut client);
            load.wait_for_progress(100);
            let content = std::fs::read(folder.join("fs/copy.img")).unwrap();
            (content, after, before)
        });
        let writes = load.stop();
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
        begin_mirror(&mut client, json!({"copy-mode": mode, "speed": 16 * MIB}));
        load.wait_for_progress(100);
        client.execute("block-job-set-speed device=j speed=0");
        client.wait_for_event("BLOCK_JOB_READY");
        complete(&mut client);
        load.wait_for_progress(100);
        let writes = load.stop();
        assert_holds_all_writes(&folder, "fs/copy.img", &writes);
        program.stop();
    }
}
