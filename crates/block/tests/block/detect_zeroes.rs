//! Writes of zeroes to nodes with `detect-zeroes` read as zeroes, and free space with `unmap`.

use std::fs;
use std::sync::Arc;

use block::{DetectZeroes, Node};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{allocated, file, folder, null, options, tmpfs_folder, ways};

const LEN: usize = 1 << 20;

/// Writes zeroes and other data of all alignments, in segments, and checks every byte around them.
fn writes_are_exact(node: &Arc<Node>) {
    node.set_guest_block_size(512).unwrap();
    let mut rig = Rig::new();
    let mut model = pattern(1, LEN);
    rig.ok(node, Call::write(0, &model));
    for (offset, len, fua, other) in [
        (0, 4096, false, None),
        (8704, 512, true, None),
        (65_536, 262_144, false, None),
        (65_536, 262_144, true, Some(0)),
        (12_800, 3584, false, Some(3583)),
        (600_064, 100_352, false, Some(50_001)),
        (LEN - 512, 512, false, None),
    ] {
        let mut data = vec![0; len];
        if let Some(other) = other {
            data[other] = 0x80;
        }
        model[offset..offset + len].copy_from_slice(&data);
        let call = Call::write(offset as u64, &data).cut(512).with_empty(1);
        rig.ok(node, if fua { call.fua() } else { call });
    }
    assert!(rig.read(node, 0, LEN) == model);
}

#[test]
fn detected_zeroes_are_exact() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        fs::write(&path, vec![1; LEN + 8192]).unwrap();
        for how in ways(&path) {
            for mode in [DetectZeroes::On, DetectZeroes::Unmap] {
                let node = file(&how);
                node.set_detect_zeroes(mode);
                writes_are_exact(&node);
                drop(node);
                // A window in front of a node that does it, and one that does it itself.
                for of_file in [true, false] {
                    let node = file(&how);
                    let end = Some(LEN as u64);
                    let window = Node::new_window("w", &node, 4096, end, false, true).unwrap();
                    let detecting = if of_file { &node } else { &window };
                    detecting.set_detect_zeroes(mode);
                    writes_are_exact(&window);
                }
            }
        }
    }
}

/// How much space a full file has after a write of zeroes to half of it.
fn space_after_zeroes(mode: Option<DetectZeroes>, unmap: bool, window: bool) -> u64 {
    let folder = folder();
    let path = folder.path().join("disk");
    fs::write(&path, vec![1; LEN]).unwrap();
    let file = file(&block::FileOptions {
        unmap,
        ..options(&path)
    });
    let node = match window {
        true => Node::new_window("w", &file, 0, None, false, true).unwrap(),
        false => file,
    };
    if let Some(mode) = mode {
        node.set_detect_zeroes(mode);
    }
    let mut rig = Rig::new();
    rig.ok(&node, Call::write(0, &vec![0; LEN / 2]));
    allocated(&path)
}

#[test]
fn unmap_makes_holes_of_zeroes_where_the_node_may_discard() {
    let full = space_after_zeroes(None, true, false);
    assert!(full >= LEN as u64);
    let on = space_after_zeroes(Some(DetectZeroes::On), true, false);
    assert_eq!(on, full, "the space stays");
    let half = full - LEN as u64 / 2;
    for window in [false, true] {
        let unmap = |may| space_after_zeroes(Some(DetectZeroes::Unmap), may, window);
        assert_eq!(unmap(true), half);
        assert_eq!(unmap(false), full, "the file's own options forbid it");
    }
}

#[test]
fn writes_to_a_null_disk_succeed() {
    let node = null(0, false);
    node.set_detect_zeroes(DetectZeroes::On);
    let mut rig = Rig::new();
    rig.ok(&node, Call::write(0, &[0; 4096]));
    rig.ok(&node, Call::write(0, &[1; 4096]));
}
