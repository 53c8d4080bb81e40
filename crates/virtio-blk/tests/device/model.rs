//! Random batches against a model disk.
//!
//! All requests of a batch are in flight together, so overlapping ones may happen in any order: a
//! sector that several write ends as one of them left it, and a read sees what was there before or
//! what one of them wrote. Where nothing overlaps, the outcome is exact.

use std::collections::{BTreeSet, HashMap};

use block::Op;
use proptest::prelude::*;
use virtio_blk::DeviceOptions;
use virtqueue::testing::TestMemory;

use crate::harness::{Asked, FLUSH, OK, Rig, Submitted, WRITE_ZEROES, range};

/// Sectors that requests are about: few, so that they meet.
const SECTORS: u64 = 48;
const MAX_REQUEST_SECTORS: u64 = 6;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Zero,
    Flush,
}

#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    sector: u64,
    sectors: u64,
}

/// A request of any kind within the disk.
fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Read),
        6 => Just(Kind::Write),
        1 => Just(Kind::Zero),
        1 => Just(Kind::Flush),
    ];
    (kind, 0..SECTORS, 1..=MAX_REQUEST_SECTORS).prop_map(|(kind, sector, sectors)| Step {
        kind,
        sector,
        sectors: sectors.min(SECTORS - sector),
    })
}

/// The disk: a byte per sector is enough, since requests write whole sectors of one byte.
type Disk = Vec<u8>;

/// Executes a block request on the model disk.
fn execute_on_model(rig: &Rig, disk: &mut Disk, request: &Submitted) {
    let first = usize::try_from(request.offset / 512).unwrap();
    let count = usize::try_from(request.len / 512).unwrap();
    let sectors = &mut disk[first..first + count];
    match request.op {
        Op::Read => {
            let bytes: Vec<u8> = sectors.iter().flat_map(|byte| [*byte; 512]).collect();
            assert_eq!(rig.memory.scatter(&request.segments, &bytes), bytes.len());
        }
        Op::Write => {
            for (sector, bytes) in sectors
                .iter_mut()
                .zip(rig.memory.gather(&request.segments).chunks(512))
            {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                *sector = bytes[0];
            }
        }
        Op::WriteZeroes { .. } => sectors.fill(0),
        Op::Flush | Op::Discard => {}
    }
}

/// Writes that stand in the ring before a flush reach the disk before it.
fn check_flush_order(rig: &Rig, batch: &[(Step, Asked)]) {
    let mut submitted = rig.sink.submitted.iter();
    let mut seen = BTreeSet::new();
    let mut must: Vec<u64> = Vec::new();
    for (step, asked) in batch {
        match step.kind {
            Kind::Write => must.push(asked.data),
            Kind::Flush => {
                for request in submitted.by_ref() {
                    if request.op == Op::Flush {
                        break;
                    }
                    seen.extend(request.segments.iter().map(|s| rig.memory.guest_addr_of(s)));
                }
                assert!(
                    must.iter().all(|data| seen.contains(data)),
                    "a flush overtook a write"
                );
            }
            Kind::Read | Kind::Zero => {}
        }
    }
}

/// Submits the batches, completes their requests in a random order, and compares what was read and is on the disk.
fn check_batches(batches: &[Vec<Step>], options: DeviceOptions, shuffle: u64) {
    let mut rig = Rig::with(options, TestMemory::new(4 << 20), 128);
    let mut disk: Disk = (0..SECTORS).map(|_| 0xd0).collect();
    let mut value = 0;
    let mut random = shuffle | 1;
    for batch in batches {
        let before = disk.clone();
        // What a sector may hold at the end of the batch, beside what it held before.
        let mut written: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut asked = Vec::new();
        for step in batch {
            value = value % 200 + 1;
            let request = match step.kind {
                Kind::Read => rig.read(step.sector, u32::try_from(step.sectors).unwrap()),
                Kind::Write => {
                    rig.write(step.sector, usize::try_from(step.sectors).unwrap(), value)
                }
                Kind::Zero => {
                    let count = u32::try_from(step.sectors).unwrap();
                    rig.ask(WRITE_ZEROES, 0, &range(step.sector, count, 0), 0)
                }
                Kind::Flush => rig.ask(FLUSH, 0, &[], 0),
            };
            let byte = match step.kind {
                Kind::Write => Some(value),
                Kind::Zero => Some(0),
                Kind::Read | Kind::Flush => None,
            };
            for sector in step.sector..step.sector + step.sectors {
                written.entry(sector).or_default().extend(byte);
            }
            asked.push((step.clone(), request));
        }
        rig.admit_all();
        check_flush_order(&rig, &asked);
        let mut submitted = std::mem::take(&mut rig.sink.submitted);
        while !submitted.is_empty() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let index = usize::try_from(random >> 33).unwrap() % submitted.len();
            let request = submitted.swap_remove(index);
            execute_on_model(&rig, &mut disk, &request);
            rig.complete(&request, Ok(()));
        }

        let mut heads: Vec<_> = rig.used().iter().map(|(head, _)| *head).collect();
        heads.sort_unstable();
        let mut expected: Vec<_> = asked.iter().map(|(_, asked)| asked.head).collect();
        expected.sort_unstable();
        assert_eq!(heads, expected, "each is answered once");
        for sector in 0..SECTORS {
            let now = disk[usize::try_from(sector).unwrap()];
            match written.get(&sector).map(Vec::as_slice) {
                None | Some([]) => assert_eq!(now, before[usize::try_from(sector).unwrap()]),
                Some(values) => assert!(values.contains(&now), "sector {sector} holds {now}"),
            }
        }
        for (step, asked) in &asked {
            assert_eq!(rig.status(asked), OK);
            let Kind::Read = step.kind else { continue };
            let data = rig
                .memory
                .read(asked.data, usize::try_from(step.sectors * 512).unwrap());
            for (sector, bytes) in (step.sector..).zip(data.chunks(512)) {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn sector");
                let old = before[usize::try_from(sector).unwrap()];
                let legal = bytes[0] == old || written[&sector].contains(&bytes[0]);
                assert!(legal, "sector {sector} read as {}", bytes[0]);
            }
        }
    }
}

proptest! {
    #[test]
    fn batches_leave_the_disk_as_they_may(
        batches in prop::collection::vec(prop::collection::vec(step(), 1..40), 1..4),
        request_merging: bool,
        shuffle: u64,
    ) {
        check_batches(&batches, DeviceOptions { request_merging, ..DeviceOptions::default() }, shuffle);
    }
}
