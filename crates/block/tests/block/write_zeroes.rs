//! Zeroed ranges read as zeroes, exactly they, with and without space behind them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use block::{FileOptions, Node};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, allocated, device, file, folder, large_block_folder, options, tmpfs_folder, ways,
};

const LEN: usize = 1 << 20;

/// Zeroes ranges of all alignments, and checks every byte around them.
pub fn zeroes_are_exact(node: &Arc<Node>) {
    node.set_guest_block_size(512).unwrap();
    let mut rig = Rig::new();
    for unmap in [false, true] {
        for fua in [false, true] {
            let mut model = pattern(1, LEN);
            rig.ok(node, Call::write(0, &model));
            for (offset, len) in [
                (0, 512),
                (4096, 4096),
                (8704, 512),
                (12_800, 3584),
                (20_480, 65_536),
                (90_624, 100_352),
                (LEN - 512, 512),
                (200_192, 2048),
                (LEN / 2 + 512, LEN / 4),
            ] {
                let call = Call::write_zeroes(offset as u64, len, unmap);
                rig.ok(node, if fua { call.fua() } else { call });
                model[offset..offset + len].fill(0);
            }
            assert!(rig.read(node, 0, LEN) == model, "unmap {unmap}, fua {fua}");
        }
    }
}

#[test]
fn in_files() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        fs::write(&path, vec![1; LEN]).unwrap();
        for how in ways(&path) {
            zeroes_are_exact(&file(&how));
            assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
        }
    }
}

#[test]
fn in_a_file_on_a_disk_of_large_blocks() {
    let Some((folder, _mount, _disk)) = large_block_folder() else {
        return;
    };
    let path = folder.path().join("disk");
    fs::write(&path, vec![1; LEN]).unwrap();
    zeroes_are_exact(&file(&options(&path)));
}

#[test]
fn on_devices() {
    for block in [512, 4096] {
        let Some(disk) = LoopDevice::new(LEN as u64, block) else {
            return;
        };
        for how in ways(&disk.path) {
            zeroes_are_exact(&device(&how));
        }
    }
}

/// How much space a file has after zeroing half of it.
fn space_after(path: &Path, how: &FileOptions, unmap: bool) -> (u64, u64) {
    fs::write(path, pattern(1, LEN)).unwrap();
    let before = allocated(path);
    let node = file(how);
    Rig::new().ok(&node, Call::write_zeroes(0, LEN / 2, unmap));
    assert!(
        fs::read(path).unwrap()[..LEN / 2]
            .iter()
            .all(|byte| *byte == 0)
    );
    (before, allocated(path))
}

#[test]
fn unmap_gives_the_space_back_and_without_it_stays() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        for how in ways(&path) {
            let (before, after) = space_after(&path, &how, false);
            assert!(after >= before, "space must stay reserved: {how:?}");
            let (before, after) = space_after(&path, &how, true);
            assert!(after <= before - (LEN / 2) as u64, "{how:?}");
            // The guest may allow it, but the operator did not.
            let kept = FileOptions {
                unmap: false,
                ..how
            };
            let (before, after) = space_after(&path, &kept, true);
            assert!(after >= before, "{kept:?}");
        }
    }
}

#[test]
fn a_device_with_unmap_is_thin_afterwards() {
    for (unmap, thin) in [(false, false), (true, true)] {
        // A new one each time: a device that could not zero one way is not asked again.
        let Some(disk) = LoopDevice::new(LEN as u64, 4096) else {
            return;
        };
        let node = device(&options(&disk.path));
        let mut rig = Rig::new();
        rig.ok(&node, Call::write(0, &pattern(1, LEN)));
        let before = allocated(&disk.image);
        rig.ok(&node, Call::write_zeroes(0, LEN, unmap));
        assert_eq!(allocated(&disk.image) < before, thin, "unmap {unmap}");
        assert!(rig.read(&node, 0, LEN).iter().all(|byte| *byte == 0));
    }
}

/// The last sector of an image need not be there to be zeroed.
#[test]
fn up_to_the_end_of_a_file_with_a_partial_sector() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        for how in ways(&path) {
            up_to_the_end(&path, &how);
        }
    }
}

pub fn up_to_the_end(path: &Path, how: &FileOptions) {
    for unmap in [false, true] {
        fs::write(path, pattern(1, 5000)).unwrap();
        let (node, mut rig) = (file(how), Rig::new());
        rig.ok(&node, Call::write_zeroes(4608, 512, unmap).fua());
        let mut model = pattern(1, 5000);
        model.resize(5120, 0);
        model[4608..].fill(0);
        assert!(rig.read(&node, 0, 5120) == model);
    }
}
