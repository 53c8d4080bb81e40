//! Tests of the space that requests free or keep: discards, zeroes, and writes of zeroes that a node detects.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use block::{DetectZeroes, FileOptions, Node};
use test_support::limited_host::ramfs_folder;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, allocated, device, file, folder, options, tmpfs_folder, try_device, ways,
};

const LEN: usize = 1 << 20;
/// Half of a disk, whose first and last sectors are not whole blocks of a filesystem.
const AT: usize = 512;
const HALF: usize = LEN / 2;

/// Makes each kind of request for half of a full file. `may_free`: the options of the nodes allow to free space.
fn check_space(path: &Path, open: impl Fn() -> Arc<Node>, may_free: bool) {
    let zeroes = || Call::write(AT as u64, &vec![0; HALF]);
    let range_of_zeroes = |unmap| Call::write_zeroes(AT as u64, HALF, unmap);
    for (request, detect_zeroes, call, frees) in [
        ("discard", None, Call::discard(AT as u64, HALF), true),
        ("zeroes", None, range_of_zeroes(false), false),
        ("zeroes, unmap", None, range_of_zeroes(true), true),
        ("write", None, zeroes(), false),
        ("detected", Some(DetectZeroes::On), zeroes(), false),
        ("detected, unmap", Some(DetectZeroes::Unmap), zeroes(), true),
    ] {
        let mut model = pattern(1, LEN);
        fs::write(path, &model).unwrap();
        let full = allocated(path);
        let node = open();
        assert_eq!(node.passes_discards(), may_free);
        if let Some(mode) = detect_zeroes {
            node.set_detect_zeroes(mode);
        }
        Rig::new().ok(&node, call);
        if request != "discard" || may_free {
            model[AT..AT + HALF].fill(0);
        }
        assert!(fs::read(path).unwrap() == model, "{request}, {may_free}");
        let freed = full.saturating_sub(allocated(path));
        let expected = match frees && may_free {
            true => (HALF - 8192) as u64..=HALF as u64,
            false => 0..=0,
        };
        assert!(expected.contains(&freed), "{request}, {may_free}: {freed}");
    }
}

#[test]
fn space_is_freed_where_the_request_and_the_options_of_a_file_allow_it() {
    for folder in [Some(folder()), tmpfs_folder()].iter().flatten() {
        let path = folder.path().join("disk");
        for how in ways(&path) {
            for unmap in [true, false] {
                let how = FileOptions {
                    unmap,
                    ..how.clone()
                };
                check_space(&path, || file(&how), unmap);
            }
            Rig::new().ok(&file(&how), Call::discard(0, LEN));
            assert_eq!(allocated(&path), 0, "also behind the last whole block");
        }
    }
}

#[test]
fn a_window_frees_space_if_it_and_its_file_may() {
    let folder = folder();
    let path = folder.path().join("disk");
    for (unmap, of_window) in [(true, true), (true, false), (false, true)] {
        let how = FileOptions {
            unmap,
            ..options(&path)
        };
        let open = || Node::new_window("part", &file(&how), 0, None, false, of_window).unwrap();
        check_space(&path, open, unmap && of_window);
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
            node.set_guest_block_size(512).unwrap().keep();
            let mut rig = Rig::new();
            let mut model = pattern(1, LEN);
            rig.ok(&node, Call::write(0, &model));
            rig.ok(&node, Call::flush());
            let full = allocated(&disk.image);
            rig.ok(&node, Call::discard(AT as u64, HALF));
            assert!(allocated(&disk.image) <= full - (HALF - 8192) as u64);
            let block = block as usize;
            model[block..(AT + HALF) / block * block].fill(0);
            assert!(rig.read(&node, 0, LEN) == model, "edges keep their data");

            // A discard of less than a block does nothing on a device with large blocks.
            let before = disk.discards();
            rig.ok(&node, Call::discard(LEN as u64 - 1024, 512));
            assert_eq!(disk.discards() > before, block == 512);
            assert!(node.geometry().discard.granularity as usize >= block);
        }
    }
}

#[test]
fn a_device_without_discards_accepts_them() {
    // Files on a ramfs cannot have holes punched.
    let Some(ramfs) = ramfs_folder(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    let Some(disk) = LoopDevice::on(ramfs.path(), LEN as u64, 512, &[]) else {
        return;
    };
    let node = device(&options(&disk.path));
    let mut rig = Rig::new();
    let mut model = pattern(1, LEN);
    rig.ok(&node, Call::write(0, &model));
    let before = disk.discards();
    rig.ok(&node, Call::discard(0, LEN));
    assert!(rig.read(&node, 0, LEN) == model);
    assert_eq!(disk.discards(), before);
    assert!(node.geometry().discard.max_bytes >= LEN as u64);
    // Nor can they be zeroed in any other way than by writing.
    rig.ok(&node, Call::write_zeroes(512, LEN - 1024, true));
    model[512..LEN - 512].fill(0);
    assert!(rig.read(&node, 0, LEN) == model);
}

#[test]
fn a_failed_discard_differs_from_an_unsupported_one() {
    let Some(disk) = LoopDevice::with(LEN as u64, 512, &["--read-only"]) else {
        return;
    };
    let node = try_device(&options(&disk.path), true).unwrap();
    let outcomes = Rig::new().all(&node, vec![Call::discard(0, LEN)]);
    assert!(outcomes[0].result.is_err(), "{outcomes:?}");
}

#[test]
fn a_device_with_unmap_is_thin_afterwards() {
    for unmap in [false, true] {
        // A new one each time: a device that could not zero one way is not asked again.
        let Some(disk) = LoopDevice::new(LEN as u64, 4096) else {
            return;
        };
        let node = device(&options(&disk.path));
        let mut rig = Rig::new();
        rig.ok(&node, Call::write(0, &pattern(1, LEN)));
        let before = allocated(&disk.image);
        rig.ok(&node, Call::write_zeroes(0, LEN, unmap));
        assert_eq!(allocated(&disk.image) < before, unmap);
        assert!(rig.read(&node, 0, LEN) == [0; LEN]);
    }
}
