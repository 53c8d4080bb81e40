//! Random requests over every way at once, against a disk in plain memory.

use std::sync::Arc;

use block::Node;
use proptest::prelude::*;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, device, file, folder, image, large_block_folder, new_image, options, tmpfs_folder,
    ways,
};

const SECTORS: usize = 256;
const SECTOR: usize = 512;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes { unmap: bool },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    kind: Kind,
    sector: usize,
    sectors: usize,
    segment: usize,
    skew: usize,
    fua: bool,
    seed: u64,
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let kind = prop_oneof![
        4 => Just(Kind::Read),
        6 => Just(Kind::Write),
        1 => Just(Kind::Flush),
        1 => Just(Kind::Discard),
        2 => any::<bool>().prop_map(|unmap| Kind::WriteZeroes { unmap }),
    ];
    let sectors = prop_oneof![3 => 1usize..9, 2 => Just(8usize), 1 => 1usize..64];
    let segment = prop_oneof![Just(512usize), Just(4096), Just(1 << 20), 1usize..2000];
    let skew = prop_oneof![3 => Just(0usize), 1 => 1usize..600];
    let step = (
        kind,
        0..SECTORS,
        sectors,
        segment,
        skew,
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(kind, sector, sectors, segment, skew, fua, seed)| Step {
            kind,
            sector,
            sectors: sectors.min(SECTORS - sector),
            segment,
            skew,
            fua: fua && seed % 4 == 0,
            seed,
        });
    let batch = prop::collection::vec(step, 1..40);
    prop::collection::vec(batch, 1..6)
}

/// Whether discarded sectors read as zeroes: then the model knows what they hold.
fn check(node: &Arc<Node>, batches: &[Vec<Step>]) {
    let mut rig = Rig::with_max_events(32);
    rig.ok(node, Call::write_zeroes(0, SECTORS * SECTOR, false));
    // `None`: a discard has left it to the disk what the sector holds, the old data or zeroes.
    let mut model: Vec<Option<Vec<u8>>> = vec![Some(vec![0; SECTOR]); SECTORS];
    for batch in batches {
        let mut calls = Vec::new();
        let mut expected = Vec::new();
        // In flight together, requests have no order: only reads may overlap.
        let mut changed = [false; SECTORS];
        let mut looked_at = [false; SECTORS];
        for step in batch {
            let range = step.sector..step.sector + step.sectors;
            let (offset, len) = ((step.sector * SECTOR) as u64, step.sectors * SECTOR);
            let reads = matches!(step.kind, Kind::Read);
            let busy = |it: usize| changed[it] || (!reads && looked_at[it]);
            if matches!(step.kind, Kind::Flush) {
                calls.push(Call::flush());
                expected.push(None);
                continue;
            }
            if range.clone().any(busy) {
                continue;
            }
            let mark = if reads { &mut looked_at } else { &mut changed };
            mark[range.clone()].fill(true);
            expected.push(reads.then(|| (step.sector, model[range.clone()].to_vec())));
            let call = match step.kind {
                Kind::Read => Call::read(offset, len),
                Kind::Write => {
                    let data = pattern(step.seed, len);
                    for (sector, bytes) in range.zip(data.chunks(SECTOR)) {
                        model[sector] = Some(bytes.to_vec());
                    }
                    Call::write(offset, &data)
                }
                Kind::WriteZeroes { unmap } => {
                    model[range].fill(Some(vec![0; SECTOR]));
                    Call::write_zeroes(offset, len, unmap)
                }
                Kind::Discard => {
                    model[range].fill(None);
                    Call::discard(offset, len)
                }
                Kind::Flush => continue,
            };
            let call = call.cut(step.segment).skewed(step.skew);
            calls.push(if step.fua && !reads { call.fua() } else { call });
        }
        for (outcome, expected) in rig.all(node, calls).into_iter().zip(expected) {
            assert_eq!(outcome.result, Ok(()));
            if let Some((sector, bytes)) = expected {
                same(sector, &outcome.data, &bytes);
            }
        }
        same(0, &rig.read(node, 0, SECTORS * SECTOR), &model);
    }
}

fn same(first: usize, found: &[u8], expected: &[Option<Vec<u8>>]) {
    for (index, expected) in expected.iter().enumerate() {
        if let Some(expected) = expected {
            let found = &found[index * SECTOR..][..SECTOR];
            assert!(found == expected.as_slice(), "sector {}", first + index);
        }
    }
}

fn property(node: &Arc<Node>) {
    node.set_guest_block_size(512).unwrap();
    let config = ProptestConfig {
        cases: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(batches in steps())| check(node, &batches));
}

const BYTES: u64 = (SECTORS * SECTOR) as u64;

#[test]
fn files() {
    for folder in [Some(folder()), tmpfs_folder()].iter().flatten() {
        let path = image(folder, "disk", BYTES);
        for how in ways(&path) {
            property(&file(&how));
        }
    }
}

#[test]
fn a_file_on_large_blocks() {
    let Some((folder, _mount, _disk)) = large_block_folder() else {
        return;
    };
    // Its last block is not whole.
    property(&file(&options(&image(&folder, "disk", BYTES + 700))));
}

#[test]
fn devices() {
    for block in [512, 4096] {
        let Some(disk) = LoopDevice::new(BYTES, block) else {
            return;
        };
        for how in ways(&disk.path) {
            property(&device(&how));
        }
    }
}

#[test]
fn a_window() {
    let (_folder, path) = new_image(4 * BYTES);
    let node = file(&options(&path));
    let window = Node::new_window("part", &node, BYTES, Some(BYTES), false, true).unwrap();
    property(&window);
    drop((node, window));
    let outside = std::fs::read(&path).unwrap();
    let bytes = usize::try_from(BYTES).unwrap();
    assert!(outside[..bytes].iter().all(|byte| *byte == 0));
    assert!(outside[2 * bytes..].iter().all(|byte| *byte == 0));
}
