//! Tests of Linux AIO on disks that answer within the call, and on others.

use std::fs::OpenOptions;
use std::sync::Arc;

use block::{AttachedDisk, Node};
use engine::Errno;
use tempfile::TempDir;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{file, folder, image, options, tmpfs_folder};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

fn disk(folder: &TempDir) -> (std::path::PathBuf, Arc<Node>) {
    let path = image(folder, "disk", BLOCKS * BLOCK as u64);
    let node = file(&options(&path));
    (path, node)
}

/// Writes all blocks and reads them back, many at once; `round` is in the bytes.
fn fill_and_check(rig: &mut Rig, node: &Arc<Node>, round: u64) {
    let offset = |block| block * BLOCK as u64;
    let bytes = |block| pattern(round * BLOCKS + block + 1, BLOCK);
    let write = |block| Call::write(offset(block), &bytes(block)).cut(1024);
    rig.all_ok(node, (0..BLOCKS).map(write).collect());
    let read = |block| Call::read(offset(block), BLOCK).cut(2048);
    let found = rig.all_ok(node, (0..BLOCKS).map(read).collect());
    for (block, found) in (0..).zip(found) {
        assert!(found == bytes(block), "round {round}, block {block}");
    }
}

fn synchronous(rig: &Rig) -> u64 {
    rig.io.aio_stats().unwrap().synchronous
}

/// A disk in memory, and an iothread that carries its requests out at once. None where there is none.
fn in_memory() -> Option<(TempDir, std::path::PathBuf, Arc<Node>, Rig, AttachedDisk)> {
    let folder = tmpfs_folder()?;
    let (path, node) = disk(&folder);
    let mut rig = Rig::new();
    let route = rig.attach(&node);
    // A machine with other work may interrupt some calls, but not all of them.
    for round in 0..2000 {
        fill_and_check(&mut rig, &node, round);
        if synchronous(&rig) > 0 {
            return Some((folder, path, node, rig, route));
        }
    }
    panic!("a disk in memory answers within the call");
}

#[test]
fn a_disk_in_memory_is_synchronous_with_the_same_bytes() {
    let Some((_folder, path, node, mut rig, route)) = in_memory() else {
        return;
    };
    // With probes in between.
    for round in 0..100 {
        fill_and_check(&mut rig, &node, round);
    }
    rig.ok(&node, Call::flush());
    rig.ok(&node, Call::write(0, &pattern(7, BLOCK)).fua());
    assert!(rig.read(&node, 0, BLOCK) == pattern(7, BLOCK));
    // The lost end of a truncated file reads as zeroes.
    fill_and_check(&mut rig, &node, 0);
    let outside = OpenOptions::new().write(true).open(path).unwrap();
    outside.set_len(3 * BLOCK as u64 / 2).unwrap();
    let mut expected = [pattern(1, BLOCK), pattern(2, BLOCK)].concat();
    expected[3 * BLOCK / 2..].fill(0);
    assert!(rig.read(&node, 0, 2 * BLOCK) == expected);
    assert!(rig.read(&node, 8 * BLOCK as u64, BLOCK) == [0; BLOCK]);
    fill_and_check(&mut rig, &node, 1);
    // Another disk with the same number begins anew.
    rig.io.detach(route);
    let before = synchronous(&rig);
    rig.ok(&node, Call::read(0, BLOCK));
    assert_eq!(synchronous(&rig), before);
}

#[test]
fn a_disk_with_rwf_nowait_stays_asynchronous() {
    let folder = folder();
    let (path, node) = disk(&folder);
    let direct = OpenOptions::new().read(true).open(&path).unwrap();
    let mut block = [0; BLOCK];
    let mut buffers = [std::io::IoSliceMut::new(&mut block)];
    let no_wait = rustix::io::ReadWriteFlags::NOWAIT;
    if rustix::io::preadv2(&direct, &mut buffers, 0, no_wait) == Err(Errno::OPNOTSUPP) {
        test_support::report::not_run("this file system cannot say that it would wait");
        return;
    }
    let mut rig = Rig::new();
    rig.attach(&node);
    for round in 0..50 {
        fill_and_check(&mut rig, &node, round);
    }
    assert_eq!(synchronous(&rig), 0);
}
