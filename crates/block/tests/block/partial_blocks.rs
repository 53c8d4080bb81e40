//! Tests of guests with sectors of 512 bytes on disks with blocks of 4096 bytes: no acknowledged write is lost to another one
//! in the same block.

use std::fs;
use std::sync::Arc;

use block::{FileOptions, Locking, Node, NodeError};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{LoopDevice, cached, device, file, large_block_folder, options, ways};

const SECTOR: usize = 512;

/// From four iothreads at once, which use these openings in turn, every sector of the range is written several times over, together
/// with zeroes, each sector by one iothread only: whatever it wrote last is there.
fn hammer(openings: &[&Arc<Node>], sectors: usize) -> Vec<u8> {
    let mut model = vec![0; sectors * SECTOR];
    let mut parts: Vec<Vec<_>> = (0..4).map(|_| Vec::new()).collect();
    for (sector, data) in model.chunks_mut(SECTOR).enumerate() {
        parts[sector % 4].push((sector, data));
    }
    std::thread::scope(|scope| {
        for (mut part, node) in parts.into_iter().zip(openings.iter().cycle()) {
            scope.spawn(move || {
                let mut rig = Rig::new();
                for round in 0..8u64 {
                    let mut calls = Vec::new();
                    for (sector, data) in &mut part {
                        let offset = (*sector * SECTOR) as u64;
                        let seed = (round << 32) | offset;
                        // Others of the thread's sectors lie in the same block.
                        calls.push(if seed % 7 == round % 7 && *sector % 3 == 0 {
                            data.fill(0);
                            Call::write_zeroes(offset, SECTOR, false)
                        } else {
                            data.copy_from_slice(&pattern(seed, SECTOR));
                            let skew = if *sector % 5 == 0 { 3 } else { 0 };
                            Call::write(offset, data).skewed(skew)
                        });
                    }
                    rig.all_ok(node, calls);
                    for (sector, data) in part.iter().filter(|(sector, _)| sector % 16 < 4) {
                        let found = rig.read(node, (sector * SECTOR) as u64, SECTOR);
                        assert!(found == **data, "sector {sector}");
                    }
                }
            });
        }
    });
    model
}

#[test]
fn writes_to_one_block_of_a_device_do_not_undo_each_other() {
    let Some(disk) = LoopDevice::new(1 << 20, 4096) else {
        return;
    };
    for how in ways(&disk.path) {
        let node = device(&how);
        assert_eq!(node.geometry().logical_block_size, 4096);
        node.set_guest_block_size(512).unwrap().keep();
        let model = hammer(&[&node], 256);
        let found = Rig::new().read(&node, 0, model.len());
        assert!(found == model, "direct: {}", how.direct);
        drop(node);
    }
}

/// A node is reopened: some exports use the old opening until they have the new one. The page cache has no blocks.
#[test]
fn writes_by_several_openings_do_not_undo_each_other() {
    let Some(disk) = LoopDevice::new(1 << 20, 4096) else {
        return;
    };
    for other in ways(&disk.path) {
        let unlocked = |how: FileOptions| {
            let node = device(&FileOptions {
                locking: Locking::Off,
                ..how
            });
            node.set_guest_block_size(512).unwrap().keep();
            node
        };
        let nodes = [options(&disk.path), other.clone()].map(unlocked);
        let model = hammer(&nodes.each_ref(), 256);
        for node in &nodes {
            let found = Rig::new().read(node, 0, model.len());
            assert!(found == model, "{other:?}");
        }
    }
}

/// A whole block and one of its sectors in flight together have no order, but what only one of them
/// writes is there in the end.
#[test]
fn a_partial_write_does_not_undo_a_whole_one() {
    let Some(disk) = LoopDevice::new(1 << 20, 4096) else {
        return;
    };
    let node = device(&options(&disk.path));
    node.set_guest_block_size(512).unwrap().keep();
    let mut rig = Rig::new();
    for round in 0..20u64 {
        let data = pattern(round, 1 << 20);
        let part = pattern(round + 1000, SECTOR);
        let blocks = data.chunks(4096).enumerate();
        let calls = blocks.flat_map(|(block, data)| {
            let offset = block as u64 * 4096;
            let (whole, part) = (Call::write(offset, data), Call::write(offset, &part));
            if block % 2 == 0 {
                [whole, part]
            } else {
                [part, whole]
            }
        });
        rig.all_ok(&node, calls.collect());
        let found = rig.read(&node, 0, 1 << 20);
        for (found, data) in found.chunks(4096).zip(data.chunks(4096)) {
            assert!(found[SECTOR..] == data[SECTOR..], "round {round}");
            assert!(found[..SECTOR] == data[..SECTOR] || found[..SECTOR] == part);
        }
    }
}

#[test]
fn writes_to_one_block_of_a_file_do_not_undo_each_other_and_its_end_stays() {
    let Some((folder, _disk)) = large_block_folder() else {
        return;
    };
    let path = folder.path().join("disk");
    // Neither whole blocks nor whole sectors.
    let bytes = 20 * 4096 + 1000;
    fs::write(&path, vec![0; bytes]).unwrap();
    let node = file(&options(&path));
    assert_eq!(node.geometry().logical_block_size, 4096);
    let size = bytes.next_multiple_of(SECTOR);
    assert_eq!(node.geometry().size, size as u64);
    node.set_guest_block_size(512).unwrap().keep();
    let model = hammer(&[&node], size / SECTOR);
    assert!(Rig::new().read(&node, 0, model.len()) == model);
    drop(node);
    // The last sector has become whole; the last block has not.
    assert!(fs::read(&path).unwrap() == model);
}

/// A sparse image that was shortened from outside grows again while guests write, several at once: each moves the end of the
/// file forward only.
#[test]
fn a_shortened_file_does_not_lose_writes_beyond_its_end() {
    let Some((folder, _disk)) = large_block_folder() else {
        return;
    };
    let path = folder.path().join("disk");
    fs::write(&path, vec![0; 8 * 4096]).unwrap();
    let node = file(&options(&path));
    node.set_guest_block_size(512).unwrap().keep();
    let outside = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut rig = Rig::new();
    for round in 0..300u64 {
        outside.set_len(700).unwrap();
        // Every sector but the last, so that the last block does not end the race.
        let data = pattern(round, 63 * SECTOR);
        let sectors = data.chunks(SECTOR).enumerate();
        let mut calls: Vec<_> = sectors
            .map(|(sector, data)| Call::write((sector * SECTOR) as u64, data))
            .collect();
        calls.rotate_left(usize::try_from(round % 63).unwrap());
        rig.all_ok(&node, calls);
        assert!(fs::read(&path).unwrap() == data, "round {round}");
    }
}

#[test]
fn exports_of_one_disk_agree_on_small_or_large_blocks() {
    let Some(disk) = LoopDevice::new(1 << 20, 4096) else {
        return;
    };
    let node = device(&options(&disk.path));
    let window = Node::new_window("part", &node, 4096, None, false, true).unwrap();
    node.set_guest_block_size(512).unwrap().keep();
    node.set_guest_block_size(2048).unwrap().keep();
    window.set_guest_block_size(1024).unwrap().keep();
    let error = window.set_guest_block_size(4096).err().unwrap();
    assert!(
        matches!(error, NodeError::MixedBlockSizes { .. }),
        "{error}"
    );
    drop((node, window));

    let node = device(&options(&disk.path));
    node.set_guest_block_size(4096).unwrap().keep();
    node.set_guest_block_size(8192).unwrap().keep();
    assert!(node.set_guest_block_size(512).is_err());
    drop(node);

    // The page cache takes any size.
    let node = device(&cached(&disk.path));
    node.set_guest_block_size(512).unwrap().keep();
    node.set_guest_block_size(4096).unwrap().keep();
}
