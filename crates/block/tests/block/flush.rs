//! Tests that flushes and FUA writes reach the disk, and that `cache.no-flush` omits them.
//!
//! A loop device counts its flushes.

use std::fs;

use block::FileOptions;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{LoopDevice, device, file, large_block_folder, try_device, ways};

/// Also if a write is a part of the device's block.
#[test]
fn flushes_reach_the_disk() {
    for block in [512, 4096] {
        let Some(disk) = LoopDevice::new(1 << 20, block) else {
            return;
        };
        for (how, no_flush) in ways(&disk.path)
            .iter()
            .flat_map(|how| [(how, false), (how, true)])
        {
            let node = device(&FileOptions {
                no_flush,
                ..how.clone()
            });
            node.set_guest_block_size(512).unwrap().keep();
            let mut rig = Rig::new();
            let write = || Call::write(512, &[7; 512]);
            let zeroes = |unmap| Call::write_zeroes(8192, 8192, unmap);
            for (call, is_stable) in [
                (write(), false),
                (zeroes(false), false),
                (Call::flush(), true),
                (write().fua(), true),
                (write().skewed(1).fua(), true),
                (zeroes(false).fua(), true),
                (zeroes(true).fua(), true),
            ] {
                let (before, shown) = (disk.flushes(), format!("{call:?} {how:?}"));
                rig.ok(&node, call);
                let has_flushed = disk.flushes() > before;
                assert_eq!(has_flushed, is_stable && !no_flush, "{shown}");
            }
            rig.ok(&node, write());
            let before = disk.flushes();
            node.flush_blocking().unwrap();
            assert_eq!(disk.flushes() > before, !no_flush, "{how:?}");
        }
    }
}

/// A write that has completed on one iothread is stable after a flush of another one, which has not written itself.
#[test]
fn a_flush_covers_what_other_iothreads_have_written() {
    let Some(disk) = LoopDevice::new(1 << 20, 512) else {
        return;
    };
    for (seed, how) in (1..).zip(ways(&disk.path)) {
        let node = device(&how);
        let (mut writer, mut other) = (Rig::new(), Rig::new());
        for block in 0..4u64 {
            let data = pattern(8 * seed + block, 4096);
            writer.ok(&node, Call::write(block * 4096, &data));
            let before = disk.flushes();
            other.ok(&node, Call::flush());
            assert!(disk.flushes() > before, "{block} {how:?}");
            // Behind the device: not in a cache of ours.
            let behind = fs::read(&disk.image).unwrap();
            let from = usize::try_from(block).unwrap() * 4096;
            assert!(behind[from..from + 4096] == data, "{block} {how:?}");
        }
    }
}

#[test]
fn a_read_only_node_is_not_flushed() {
    let Some(disk) = LoopDevice::new(1 << 20, 512) else {
        return;
    };
    for how in ways(&disk.path) {
        let node = try_device(&how, true).unwrap();
        let before = disk.flushes();
        Rig::new().ok(&node, Call::flush());
        node.flush_blocking().unwrap();
        assert_eq!(disk.flushes(), before);
    }
}

/// The filesystem sends a flush to its disk for each file that is flushed.
#[test]
fn files_are_flushed_down_to_the_disk() {
    let Some((folder, disk)) = large_block_folder() else {
        return;
    };
    let path = folder.path().join("disk");
    fs::write(&path, vec![0; 1 << 20]).unwrap();
    for how in ways(&path) {
        let node = file(&how);
        let mut rig = Rig::new();
        for (write, flush) in [
            (Call::write(0, &[9; 4096]), Call::flush()),
            (Call::read(0, 512), Call::write(0, &[9; 4096]).fua()),
            (Call::read(0, 512), Call::write(0, &[9; 512]).fua()),
        ] {
            rig.ok(&node, write);
            let before = disk.flushes();
            rig.ok(&node, flush);
            assert!(disk.flushes() > before, "{how:?}");
        }
    }
}
