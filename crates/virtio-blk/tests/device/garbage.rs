//! Random bytes as requests: each is answered, or the queue is broken; never anything else.

use proptest::prelude::*;
use telemetry::queue::AdmissionEnd;
use virtio_blk::{AdmitError, DeviceOptions};
use virtqueue::testing::{DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, RawDescriptor, TestMemory};

use crate::harness::{DISCARD, FLUSH, GET_ID, IN, IOERR, OK, OUT, Rig, UNSUPP, WRITE_ZEROES};

const RING_SIZE: u16 = 64;
const MAX_CHAIN: u16 = 6;
const MEMORY_BYTES: u64 = 1 << 16;
const MEMORY_START: u64 = 0x10_0000;
/// Behind the rings.
const FREE: u64 = MEMORY_START + 0x1000;

/// Header bytes that a device looks at twice, and others.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        20 => prop::sample::select(&[IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES][..]),
        1 => 0u32..32,
        1 => any::<u32>(),
        1 => (0u32..16).prop_map(|kind| kind | 1 << 31)
    ];
    let sector =
        prop_oneof![4 => 0u64..2100, 1 => any::<u64>(), 1 => (0u64..4).prop_map(|n| (1 << 55) - n)];
    let rest = prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 24);
    (kind, sector, rest).prop_map(|(kind, sector, rest)| {
        let mut bytes = crate::harness::header(kind, sector).to_vec();
        bytes.extend(rest);
        bytes
    })
}

/// Any descriptor at all.
fn descriptor() -> impl Strategy<Value = RawDescriptor> {
    let addr = prop_oneof![
        FREE..MEMORY_START + MEMORY_BYTES,
        any::<u64>(),
        MEMORY_START..FREE,
        Just(MEMORY_START + MEMORY_BYTES - 1)
    ];
    let len = prop_oneof![0u32..5000, any::<u32>()];
    let flags = prop_oneof![
        Just(DESC_F_NEXT),
        Just(DESC_F_NEXT | DESC_F_WRITE),
        Just(DESC_F_WRITE),
        Just(DESC_F_INDIRECT),
        any::<u16>()
    ];
    let next = prop_oneof![10 => 0..RING_SIZE, 1 => any::<u16>()];
    (addr, len, flags, next).prop_map(|(addr, len, flags, next)| RawDescriptor {
        addr,
        len,
        flags,
        next,
    })
}

/// A chain that has the form of a request, more or less: its buffers, which may overlap with each
/// other and with those of other requests, and what lies where the first of them begins.
#[derive(Clone, Debug)]
struct Shape {
    header: Vec<u8>,
    readable: Vec<(u64, u32)>,
    writable: Vec<(u64, u32)>,
}

fn buffer() -> impl Strategy<Value = (u64, u32)> {
    let len = prop_oneof![6 => Just(512u32), 2 => Just(1024), 2 => Just(1), 2 => 0u32..40, 1 => 0u32..8192];
    (FREE..MEMORY_START + MEMORY_BYTES - 8192, len)
}

/// Descriptors of a request, well-formed more often than not.
fn shape() -> impl Strategy<Value = Shape> {
    let first = prop_oneof![20 => Just(16u32), 4 => Just(32), 4 => Just(16 + 512), 1 => 0u32..16];
    (
        header(),
        FREE..MEMORY_START + MEMORY_BYTES - 8192,
        first,
        prop::collection::vec(buffer(), 0..3),
        prop::collection::vec(buffer(), 0..3),
        prop_oneof![20 => Just(1u32), 2 => Just(513), 1 => Just(0)],
    )
        .prop_map(|(header, at, first, more, mut writable, last)| {
            writable.push((at + 4096, last));
            Shape {
                header,
                readable: [vec![(at, first)], more].concat(),
                writable,
            }
        })
}

#[derive(Clone, Debug)]
struct Garbage {
    shapes: Vec<Shape>,
    /// What then overwrites a descriptor of the table.
    overwrites: Vec<(u16, RawDescriptor)>,
    /// Heads that are made available again, or are none at all.
    more_heads: Vec<u16>,
}

/// Requests of any shape, some of which are overwritten or made available again.
fn garbage() -> impl Strategy<Value = Garbage> {
    let few = prop_oneof![2 => Just(0usize), 1 => Just(1), 1 => Just(3)];
    (
        prop::collection::vec(shape(), 1..10),
        few.clone()
            .prop_flat_map(|count| prop::collection::vec((0..RING_SIZE, descriptor()), count)),
        few.prop_flat_map(|count| {
            prop::collection::vec(prop_oneof![6 => 0..RING_SIZE, 1 => any::<u16>()], count)
        }),
    )
        .prop_map(|(shapes, overwrites, more_heads)| Garbage {
            shapes,
            overwrites,
            more_heads,
        })
}

/// Puts it all in memory, and says where chains begin.
fn lay_out(rig: &Rig, garbage: &Garbage) -> Vec<u16> {
    let mut heads = Vec::new();
    for (place, shape) in (0..).zip(&garbage.shapes) {
        rig.memory.write(shape.readable[0].0, &shape.header);
        let mut index = place * MAX_CHAIN;
        heads.push(index);
        let count = shape.readable.len() + shape.writable.len();
        for (at, &(addr, len)) in shape.readable.iter().chain(&shape.writable).enumerate() {
            let mut flags = 0;
            if at >= shape.readable.len() {
                flags |= DESC_F_WRITE;
            }
            if at + 1 < count {
                flags |= DESC_F_NEXT;
            }
            let next = index + 1;
            let descriptor = RawDescriptor {
                addr,
                len,
                flags,
                next,
            };
            rig.driver.write_descriptor(index, descriptor);
            index = next;
        }
    }
    for (index, descriptor) in &garbage.overwrites {
        rig.driver.write_descriptor(*index, *descriptor);
    }
    heads.extend(&garbage.more_heads);
    heads
}

/// Asserts that the device answers each request or breaks the queue, and touches only the guest's memory.
fn check_garbage(garbage: &Garbage, options: DeviceOptions) {
    let mut rig = Rig::with(options, TestMemory::new(MEMORY_BYTES), RING_SIZE);
    for head in lay_out(&rig, garbage) {
        rig.driver.make_available(head);
    }
    let memory = rig.memory.guest_memory();
    let admission = rig.queue.admit_from_ring(
        &mut rig.ring,
        &memory,
        &mut rig.chain,
        &mut rig.sink,
        usize::MAX,
    );
    for request in &rig.sink.submitted {
        for segment in &request.segments {
            // Panics outside of memory.
            rig.memory.guest_addr_of(segment);
        }
    }
    rig.complete_all();
    assert_eq!(rig.queue.in_flight(), 0);
    rig.ring.publish();
    let broken_request = matches!(&admission, Err(AdmitError::Request(_)));
    assert_eq!(
        rig.driver.used_idx() + u16::from(broken_request),
        rig.ring.next_avail_counting_recovered(),
        "what was taken is answered"
    );
    assert_ne!(admission, Ok(AdmissionEnd::Stalled));
    rig.memory.check_canaries();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_requests_are_answered_or_break_the_queue(
        garbage in garbage(),
        request_merging: bool,
        read_only: bool,
    ) {
        let options = DeviceOptions { request_merging, read_only, ..DeviceOptions::default() };
        check_garbage(&garbage, options);
    }

    #[test]
    fn well_framed_requests_with_random_contents_are_always_answered(
        requests in prop::collection::vec((header(), 0u32..3, 0u32..3), 1..16),
        request_merging: bool,
    ) {
        let options = DeviceOptions { request_merging, ..DeviceOptions::default() };
        let mut rig = Rig::new(options);
        let mut asked = Vec::new();
        for (header, out, in_sectors) in requests {
            let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
            let sector = u64::from_le_bytes(header[8..16].try_into().unwrap());
            let mut data = header[16..].to_vec();
            data.resize(usize::try_from(out).unwrap() * 512 + 16, 0);
            asked.push(rig.ask(kind, sector, &data[if out > 0 { 16 } else { 0 }..], in_sectors * 512));
        }
        rig.admit_all();
        rig.complete_all();
        prop_assert_eq!(rig.used().len(), asked.len());
        for asked in &asked {
            prop_assert!([OK, IOERR, UNSUPP].contains(&rig.status(asked)));
        }
    }
}
