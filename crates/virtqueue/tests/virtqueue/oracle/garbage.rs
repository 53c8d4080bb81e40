//! Property test of the split queue with a hostile driver: rings, tables and indices full of what is most likely to hurt. We never panic,
//! always come to an end, stay inside the regions (the pages around them are not accessible), and
//! write nothing but the used ring.

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use virtqueue::testing::{
    Buffer, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DriverRing, RawDescriptor, TestMemory,
};
use virtqueue::{Chain, MAX_SEGMENTS, RingError, RingFeatures, SplitRing};

use super::peer::{Peer, pieces};

const SIZE: u16 = 16;
/// Rings, tables, and two adjacent regions for buffers, all with odd ends.
const REGIONS: [(u64, u64); 3] = [(0x1_0000, 0x2000), (0x2_0000, 0x1000), (0x2_1000, 0x777)];
/// Where indirect tables are written, so that a random reference may hit one.
const TABLE: u64 = 0x1_1000;
const TABLE_DESCRIPTORS: u16 = 32;

/// Addresses, many of them in tables or near the borders of regions.
fn addr() -> impl Strategy<Value = u64> {
    let edges = vec![
        0,
        0x1_0000,
        0x1_2000,
        0x2_0000,
        0x2_1000,
        0x2_1777,
        u64::MAX,
        1 << 63,
    ];
    prop_oneof![
        4 => 0x2_0000..0x2_1777u64,
        3 => (0..8u64).prop_map(|index| TABLE + 16 * index),
        2 => (prop::sample::select(edges), -20..20i64)
            .prop_map(|(edge, distance)| edge.wrapping_add_signed(distance)),
        1 => any::<u64>(),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 0..0x800u32,
        4 => (0..40u32).prop_map(|count| 16 * count),
        1 => prop::sample::select(vec![1 << 14, (1 << 14) + 16, 1 << 31, u32::MAX - 15, u32::MAX]),
        1 => any::<u32>(),
    ]
}

/// Descriptors, most of them with flags that have a meaning.
fn descriptor() -> impl Strategy<Value = RawDescriptor> {
    let flags = prop_oneof![
        3 => Just(0),
        4 => Just(DESC_F_NEXT),
        3 => Just(DESC_F_WRITE),
        3 => Just(DESC_F_WRITE | DESC_F_NEXT),
        2 => Just(DESC_F_INDIRECT),
        1 => any::<u16>(),
    ];
    let next = prop_oneof![8 => 0..SIZE, 1 => SIZE..=TABLE_DESCRIPTORS, 1 => any::<u16>()];
    (addr(), len(), flags, next).prop_map(|(addr, len, flags, next)| RawDescriptor {
        addr,
        len,
        flags,
        next,
    })
}

/// Everything of the memory but the used ring.
fn without_used(driver: &DriverRing) -> Vec<Vec<u8>> {
    let used = driver.layout().used;
    let behind = used + 6 + 8 * u64::from(SIZE);
    let memory = driver.memory();
    let part = |from: u64, to: u64| memory.read(from, usize::try_from(to - from).unwrap());
    let mut parts = vec![
        part(REGIONS[0].0, used),
        part(behind, REGIONS[0].0 + REGIONS[0].1),
    ];
    parts.extend(
        REGIONS[1..]
            .iter()
            .map(|&(addr, len)| part(addr, addr + len)),
    );
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn garbage_is_refused_or_read_as_the_peer_reads_it(
        event_idx: bool,
        indirect: bool,
        table in vec(descriptor(), usize::from(SIZE)),
        indirect_table in vec(descriptor(), usize::from(TABLE_DESCRIPTORS)),
        heads in vec(prop_oneof![9 => 0..SIZE, 1 => any::<u16>()], usize::from(SIZE)),
        base in prop_oneof![Just(0), 0xfff0u16..=0xffff, any::<u16>()],
        ahead in prop_oneof![9 => 0..=SIZE, 1 => any::<u16>()],
        events: [u16; 2],
    ) {
        let memory = TestMemory::with_regions(&REGIONS);
        let features = RingFeatures { event_idx, indirect, packed: false, };
        let driver = DriverRing::with_base(&memory, SIZE, features, base);
        let mut queue = driver.device_queue();
        let mut peer = Peer::new(&REGIONS, &driver, base);
        for (index, descriptor) in (0..).zip(table) {
            driver.write_descriptor(index, descriptor);
        }
        for (index, descriptor) in (0..).zip(indirect_table) {
            driver.write_descriptor_in(TABLE, index, descriptor);
        }
        for (index, head) in (0..).zip(heads) {
            driver.set_avail_entry(index, head);
        }
        driver.set_avail_idx(base.wrapping_add(ahead));
        driver.set_used_event(events[0]);
        driver.set_no_interrupt(events[1] & 1 != 0);
        peer.copy_from(&memory);
        let before = without_used(&driver);

        let guest_memory = memory.guest_memory();
        let mut chain = Chain::new();
        queue.enable_kicks_and_recheck();
        let mut popped = 0;
        while let Ok(Some(head)) = queue.pop(&guest_memory, &mut chain) {
            popped += 1;
            prop_assert!(popped <= SIZE, "more chains than the queue has entries");
            prop_assert!(chain.readable().len() + chain.writable().len() <= MAX_SEGMENTS);
            // Panics when a segment is not inside a region.
            let ours = (pieces(&memory, chain.readable()), pieces(&memory, chain.writable()));
            prop_assert_eq!(peer.pop(), Some((head, ours)));
            queue.push(head, events[1].into());
            queue.publish();
        }
        queue.disable_kicks();
        prop_assert_eq!(without_used(&driver), before);
        memory.check_canaries();
    }
}

/// Stops the other thread when this one is done, also when it panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The guest rewrites a chain while we read it. What was checked must be what is used: a length
/// read twice, once to check it and once to use it, would lead out of the region sooner or later.
#[test]
fn a_chain_that_changes_while_it_is_read_stays_inside_memory() {
    const END: u64 = 0x2_1000;
    const ROUNDS: u16 = 60_000;
    let regions = [(0x1_0000, 0x2000), (0x2_0000, END - 0x2_0000)];
    let memory = TestMemory::with_regions(&regions);
    let features = RingFeatures {
        event_idx: false,
        indirect: true,
        packed: false,
    };
    let mut driver = DriverRing::new(&memory, SIZE, features);
    let mut queue = driver.device_queue();
    let head = driver.add(&[
        Buffer::readable(END - 0x10, 0x10),
        Buffer::writable(END - 1, 1),
    ]);
    driver.add_indirect(&[Buffer::readable(END - 0x10, 0x10)]);
    let desc = driver.layout().desc + 16 * u64::from(head);
    let stop = AtomicBool::new(false);

    let (mut taken, mut refused) = (0u16, 0u16);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut round = 0u16;
            while !stop.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                // Low word of the address, of the length, the flags, and `next`, of the first chain.
                memory.store_u16(desc, if round & 1 == 0 { 0x0ff0 } else { 0x0fff });
                memory.store_u16(desc + 8, if round & 2 == 0 { 0x10 } else { 0x1000 });
                memory.store_u16(desc + 12, (round >> 2) & 7);
                memory.store_u16(desc + 14, (round >> 5) % (SIZE + 4));
            }
        });
        let guest_memory = memory.guest_memory();
        let mut chain = Chain::new();
        for index in 1..=ROUNDS {
            driver.set_avail_entry(index - 1, head);
            driver.set_avail_idx(index);
            match queue.pop(&guest_memory, &mut chain) {
                Ok(popped) => {
                    assert_eq!(popped, Some(head));
                    for segment in chain.readable().iter().chain(chain.writable()) {
                        memory.guest_addr_of(segment);
                    }
                    taken += 1;
                }
                Err(RingError::AvailIndexTooFarAhead { .. }) => panic!("the index was right"),
                Err(_) => {
                    refused += 1;
                    // A queue stays where it broke; the next round needs a fresh one.
                    queue =
                        SplitRing::new(&guest_memory, driver.layout(), features, index).unwrap();
                }
            }
        }
    });
    assert_eq!(taken + refused, ROUNDS);
    memory.check_canaries();
}
