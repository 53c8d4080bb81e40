//! Tests of discards: they free space, if `unmap` is on.

use std::fs;

use block::FileOptions;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, allocated, device, file, folder, mount, options, tmpfs_folder, try_device, ways,
};

const LEN: usize = 1 << 20;

#[test]
fn discards_free_the_space_of_files() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        let data = pattern(1, LEN);
        for how in ways(&path) {
            fs::write(&path, &data).unwrap();
            let full = allocated(&path);
            let (node, mut rig) = (file(&how), Rig::new());
            // Sectors at the edges are not whole blocks of the filesystem.
            rig.ok(&node, Call::discard(512, LEN / 2));
            assert!(allocated(&path) <= full - (LEN / 2 - 8192) as u64);
            assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
            let mut model = data.clone();
            model[512..512 + LEN / 2].fill(0);
            assert!(rig.read(&node, 0, LEN) == model);
            // To the end and all of it.
            rig.ok(&node, Call::discard(0, LEN));
            assert_eq!(allocated(&path), 0);
        }
    }
}

#[test]
fn without_unmap_a_discard_does_nothing() {
    let folder = folder();
    let path = folder.path().join("disk");
    let data = pattern(1, LEN);
    for how in ways(&path) {
        fs::write(&path, &data).unwrap();
        let full = allocated(&path);
        let node = file(&FileOptions {
            unmap: false,
            ..how
        });
        assert!(!node.passes_discards());
        Rig::new().ok(&node, Call::discard(0, LEN));
        assert_eq!(allocated(&path), full);
        assert!(fs::read(&path).unwrap() == data);
    }
}

#[test]
fn devices_get_discards_of_whole_blocks_only() {
    for block in [512, 4096] {
        let Some(disk) = LoopDevice::new(LEN as u64, block) else {
            return;
        };
        for how in ways(&disk.path) {
            let node = device(&how);
            node.set_guest_block_size(512).unwrap();
            let mut rig = Rig::new();
            let data = pattern(1, LEN);
            rig.ok(&node, Call::write(0, &data));
            rig.ok(&node, Call::flush());
            let full = allocated(&disk.image);
            rig.ok(&node, Call::discard(512, LEN / 2));
            assert!(allocated(&disk.image) <= full - (LEN / 2 - 8192) as u64);
            let edge = if block == 512 { 512 } else { 4096 };
            let mut model = data.clone();
            let end = (512 + LEN / 2) / block as usize * block as usize;
            model[edge..end].fill(0);
            assert!(rig.read(&node, 0, LEN) == model, "edges keep their data");

            // A discard of less than a block does nothing on a device with large blocks.
            let before = disk.discards();
            rig.ok(&node, Call::discard(LEN as u64 - 1024, 512));
            assert_eq!(disk.discards() > before, block == 512);
            assert!(node.geometry().discard.granularity >= block);
        }
    }
}

#[test]
fn a_device_without_discards_accepts_them() {
    // Files on a ramfs cannot have holes punched.
    let Some((folder, _mount)) = mount(&["-t", "ramfs", "ramfs"]) else {
        return;
    };
    let Some(disk) = LoopDevice::on(folder.path(), LEN as u64, 512, &[]) else {
        return;
    };
    let node = device(&options(&disk.path));
    let mut rig = Rig::new();
    let data = pattern(1, LEN);
    rig.ok(&node, Call::write(0, &data));
    let before = disk.discards();
    rig.ok(&node, Call::discard(0, LEN));
    assert!(rig.read(&node, 0, LEN) == data);
    assert_eq!(disk.discards(), before);
    assert!(node.geometry().discard.max_bytes >= LEN as u64);
    // Nor can they be zeroed in any other way than by writing.
    rig.ok(&node, Call::write_zeroes(512, LEN - 1024, true));
    let mut model = data;
    model[512..LEN - 512].fill(0);
    assert!(rig.read(&node, 0, LEN) == model);
}

#[test]
fn a_failed_discard_differs_from_an_unsupported_one() {
    let Some(disk) = LoopDevice::with(LEN as u64, 512, &["--read-only"]) else {
        return;
    };
    let node = try_device(&options(&disk.path), true).unwrap();
    let result = Rig::new().one(&node, Call::discard(0, LEN)).result;
    assert!(result.is_err(), "{result:?}");
}

#[test]
fn discards_beside_writes_do_not_touch_them() {
    let Some(disk) = LoopDevice::new(LEN as u64, 4096) else {
        return;
    };
    let node = device(&options(&disk.path));
    node.set_guest_block_size(512).unwrap();
    let mut rig = Rig::new();
    for round in 0..20 {
        rig.ok(&node, Call::write(0, &pattern(round, LEN)));
        let mut calls = Vec::new();
        let mut model = vec![0; LEN];
        for at in (0..LEN).step_by(8192) {
            let data = pattern((round << 32) | at as u64, 1024);
            calls.push(Call::write(at as u64, &data));
            // The rest of that block is no whole one, and stays as it is.
            calls.push(Call::discard(at as u64 + 1024, 7168));
            model[at..at + 1024].copy_from_slice(&data);
        }
        for outcome in rig.all(&node, calls) {
            assert_eq!(outcome.result, Ok(()));
        }
        let found = rig.read(&node, 0, LEN);
        for at in (0..LEN).step_by(8192) {
            assert!(found[at..at + 1024] == model[at..at + 1024], "at {at}");
            assert!(found[at + 4096..at + 8192].iter().all(|byte| *byte == 0));
        }
    }
}
