//! Random requests over every way at once, against a disk in plain memory.

use std::ops::Range;
use std::sync::Arc;

use block::{DetectZeroes, FaultRules, Faults, Node, Op};
use proptest::prelude::*;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, device, file, folder, image, large_block_folder, options, tmpfs_folder, ways,
};

const SECTORS: usize = 256;
const SECTOR: usize = 512;
const LEN: usize = SECTORS * SECTOR;

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    sectors: Range<usize>,
    segment: usize,
    skew: usize,
    fua: bool,
    seed: u64,
}

impl Step {
    fn offset(&self) -> u64 {
        (self.sectors.start * SECTOR) as u64
    }

    /// The data of a write: some are zeroes, and some are but for one byte.
    fn data(&self) -> Vec<u8> {
        let mut data = vec![0; self.sectors.len() * SECTOR];
        let anywhere = usize::try_from(self.seed >> 32).unwrap() % data.len();
        match self.seed % 8 {
            0 => {}
            1 => data[anywhere] = 0x80,
            _ => data = pattern(self.seed, data.len()),
        }
        data
    }

    fn call(&self) -> Call {
        let (offset, len) = (self.offset(), self.sectors.len() * SECTOR);
        let call = match self.op {
            Op::Read => return self.placed(Call::read(offset, len)),
            Op::Flush => return Call::flush(),
            Op::Write => Call::write(offset, &self.data()),
            Op::WriteZeroes { unmap } => Call::write_zeroes(offset, len, unmap),
            Op::Discard => Call::discard(offset, len),
        };
        self.placed(if self.fua { call.fua() } else { call })
    }

    fn placed(&self, call: Call) -> Call {
        let empty = usize::from(self.seed % 16 == 2);
        call.cut(self.segment).skewed(self.skew).with_empty(empty)
    }
}

fn batches() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        6 => Just(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Discard),
        2 => any::<bool>().prop_map(|unmap| Op::WriteZeroes { unmap }),
    ];
    let sectors = prop_oneof![3 => 1usize..9, 2 => Just(8usize), 1 => 1usize..64];
    // The largest requests have up to a thousand of the smallest segments.
    let few = prop_oneof![Just(512usize), Just(4096), Just(1 << 20), 1usize..2000];
    let segment = prop_oneof![3 => few, 1 => 32usize..128];
    let skew = prop_oneof![3 => Just(0usize), 1 => 1usize..600];
    let step = (op, 0..SECTORS, sectors, segment, skew, any::<u64>()).prop_map(
        |(op, sector, sectors, segment, skew, seed)| Step {
            op,
            sectors: sector..SECTORS.min(sector + sectors),
            segment,
            skew,
            fua: seed % 5 == 0,
            seed,
        },
    );
    let batch = prop::collection::vec(step, 1..40);
    prop::collection::vec(batch, 1..6)
}

/// The bytes of each sector. `None`: a discard has left it to the disk what the sector holds, the old data or zeroes.
type Model = Vec<Option<Vec<u8>>>;

fn check(node: &Arc<Node>, batches: &[Vec<Step>]) {
    let mut rig = Rig::with_max_events(32);
    rig.ok(node, Call::write_zeroes(0, LEN, false));
    let mut model: Model = vec![Some(vec![0; SECTOR]); SECTORS];
    for batch in batches {
        let mut calls = Vec::new();
        let mut expected = Vec::new();
        // In flight together, requests have no order: only reads may overlap.
        let mut changed = [false; SECTORS];
        let mut looked_at = [false; SECTORS];
        for step in batch {
            let range = step.sectors.clone();
            let reads = step.op == Op::Read;
            let is_busy = |it: usize| changed[it] || (!reads && looked_at[it]);
            if step.op != Op::Flush {
                if range.clone().any(is_busy) {
                    continue;
                }
                let mark = if reads { &mut looked_at } else { &mut changed };
                mark[range.clone()].fill(true);
            }
            calls.push(step.call());
            expected.push(reads.then(|| model[range.clone()].to_vec()));
            match step.op {
                Op::Read | Op::Flush => {}
                Op::Discard => model[range].fill(None),
                Op::WriteZeroes { .. } => model[range].fill(Some(vec![0; SECTOR])),
                Op::Write => {
                    let data = step.data();
                    let sectors = data.chunks(SECTOR).map(|bytes| Some(bytes.to_vec()));
                    model.splice(range, sectors);
                }
            }
        }
        for (found, expected) in rig.all_ok(node, calls).iter().zip(expected) {
            assert_same(found, &expected.unwrap_or_default());
        }
        assert_same(&rig.read(node, 0, LEN), &model);
    }
}

fn assert_same(found: &[u8], expected: &[Option<Vec<u8>>]) {
    for (index, expected) in expected.iter().enumerate() {
        if let Some(expected) = expected {
            let found = &found[index * SECTOR..][..SECTOR];
            assert!(found == expected.as_slice(), "sector {index}");
        }
    }
}

/// A node with at least [`LEN`] bytes holds what was written, in so many cases.
fn property(node: &Arc<Node>, cases: u32) {
    node.set_guest_block_size(512).unwrap().keep();
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(batches in batches())| check(node, &batches));
}

#[test]
fn requests_to_files_match_the_model() {
    for folder in [Some(folder()), tmpfs_folder()].iter().flatten() {
        let path = image(folder, "disk", LEN as u64);
        for how in ways(&path) {
            property(&file(&how), 40);
        }
    }
}

#[test]
fn requests_to_a_file_on_large_blocks_match_the_model() {
    let Some((folder, _disk)) = large_block_folder() else {
        return;
    };
    // Its last block is not whole.
    property(
        &file(&options(&image(&folder, "disk", LEN as u64 + 700))),
        40,
    );
}

#[test]
fn requests_to_devices_match_the_model() {
    for block in [512, 4096] {
        let Some(disk) = LoopDevice::new(LEN as u64, block) else {
            return;
        };
        for how in ways(&disk.path) {
            property(&device(&how), 40);
        }
    }
}

/// Two windows, and a filter without rules between them. The file or the topmost node detects zeroes.
#[test]
fn requests_through_nodes_above_a_file_match_the_model() {
    let begin = 2 * LEN + 4608;
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = image(folder, "disk", 4 * LEN as u64);
        for how in ways(&path) {
            for detected_by in 0..3 {
                let below = file(&how);
                let part = |node, offset, len| {
                    Node::new_window("part", node, offset, len, false, true).unwrap()
                };
                let part_of_file = part(&below, 2 * LEN as u64, None);
                let faults = Faults::new(FaultRules::default());
                let filter = Node::new_filter("filter", &part_of_file, faults, false, true);
                let top = part(&filter, 4608, Some(LEN as u64));
                match detected_by {
                    0 => below.set_detect_zeroes(DetectZeroes::On),
                    1 => top.set_detect_zeroes(DetectZeroes::Unmap),
                    _ => {}
                }
                property(&top, 10);
            }
        }
        let mut outside = std::fs::read(&path).unwrap();
        outside[begin..begin + LEN].fill(0);
        assert!(outside == vec![0; 4 * LEN], "only the window has changed");
    }
}
