//! Malformed queues and chains: each way to be wrong, and the last value that is still right. Layouts are tested here for both
//! forms of a queue, chains for split queues: see `packed_malformed.rs` for the others. Random bytes as rings are those of fuzz targets,
//! `ring-split` and `ring-packed` of `tools/fuzz-targets`.

use test_support::repeating_thread::while_repeating;
use virtqueue::MAX_QUEUE_SIZE;
use virtqueue::testing::{
    Buffer, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DriverRing, RawDescriptor, TestMemory,
};
use virtqueue::{
    Chain, GuestMemory, MAX_CHAIN_DESCRIPTORS, MAX_SEGMENTS, Queue, Region, RingError,
    RingFeatures, RingLayout, RingPart, SplitRing,
};

const SIZE: u16 = 8;
const BASE: u64 = 0x10_0000;
const LEN: u64 = 0x10_0000;
const END: u64 = BASE + LEN;
const INDIRECT: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: false,
};
const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    ..INDIRECT
};
const PACKED: RingFeatures = RingFeatures {
    packed: true,
    ..INDIRECT
};

/// Starts a queue with its parts at these addresses in `BASE..END`.
fn start(layout: RingLayout, features: RingFeatures, base: u16) -> Result<(), RingError> {
    let memory = TestMemory::with_regions(&[(BASE, LEN)]);
    Queue::new(&memory.guest_memory(), layout, features, base.into()).map(drop)
}

fn layout(size: u16) -> RingLayout {
    RingLayout {
        size,
        desc: BASE,
        avail: BASE + 0x8000,
        used: BASE + 0x1_0000,
    }
}

/// A queue whose descriptors 0.. are these, with descriptor 0 made available, and what popping says.
struct Broken {
    memory: TestMemory,
    driver: DriverRing,
    queue: SplitRing,
    chain: Chain,
}

impl Broken {
    fn new(features: RingFeatures) -> Broken {
        Broken::in_regions(&[(BASE, LEN)], features)
    }

    /// A driver that a test lets break the rules, in these regions.
    fn in_regions(regions: &[(u64, u64)], features: RingFeatures) -> Broken {
        let memory = TestMemory::with_regions(regions);
        let driver = DriverRing::new(&memory, SIZE, features);
        let queue = driver.device_queue();
        Broken {
            memory,
            driver,
            queue,
            chain: Chain::new(),
        }
    }

    /// Pops a chain of these descriptors.
    fn pop_of(&mut self, descriptors: &[RawDescriptor]) -> Result<Option<u16>, RingError> {
        for (index, descriptor) in (0..).zip(descriptors) {
            self.driver.write_descriptor(index, *descriptor);
        }
        self.driver.make_available(0);
        self.pop()
    }

    /// Pops a chain of descriptor 0, which refers to an indirect table with these descriptors.
    fn pop_of_table(&mut self, descriptors: &[RawDescriptor]) -> Result<Option<u16>, RingError> {
        let len = 16 * u32::try_from(descriptors.len()).unwrap();
        let addr = self.memory.alloc(u64::from(len), 16);
        for (index, descriptor) in (0..).zip(descriptors) {
            self.driver.write_descriptor_in(addr, index, *descriptor);
        }
        self.pop_of(&[table(addr, len)])
    }

    /// Pops; after an error the queue has to stay where it is.
    fn pop(&mut self) -> Result<Option<u16>, RingError> {
        let next_avail = self.queue.next_avail();
        let popped = self.queue.pop(&self.memory.guest_memory(), &mut self.chain);
        if popped.is_err() {
            assert_eq!(self.queue.next_avail(), next_avail, "it stays where it is");
            assert!(self.queue.has_available(), "polling must lead to the error");
        }
        popped
    }
}

fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> RawDescriptor {
    RawDescriptor {
        addr,
        len,
        flags,
        next,
    }
}

/// A good buffer, followed by descriptor `next` if there is one.
fn buffer(next: Option<u16>) -> RawDescriptor {
    let flags = if next.is_some() { DESC_F_NEXT } else { 0 };
    descriptor(BASE + 0x8_0000, 0x200, flags, next.unwrap_or(0xffff))
}

/// A reference to an indirect table.
fn table(addr: u64, len: u32) -> RawDescriptor {
    descriptor(addr, len, DESC_F_INDIRECT, 0)
}

#[test]
fn size_must_be_in_range_and_that_of_a_split_queue_a_power_of_two() {
    let max = MAX_QUEUE_SIZE;
    for size in [0, 3, 24, max - 1, max + 1, max * 2, 0xffff] {
        let refused = Err(RingError::BadSize { size, max });
        assert_eq!(start(layout(size), EVENT_IDX, 0), refused);
    }
    for size in [0, max + 1, 4096, u16::MAX] {
        let refused = Err(RingError::BadPackedSize { size, max });
        assert_eq!(start(layout(size), PACKED, 0), refused);
    }
    let split = (0..=10).map(|exponent| (1 << exponent, EVENT_IDX));
    for (size, features) in split.chain([1, 2, 3, 5, 1000, 1023, max].map(|size| (size, PACKED))) {
        assert_eq!(start(layout(size), features, 0), Ok(()), "{size}");
    }
}

#[test]
fn the_base_of_a_packed_queue_must_be_in_its_ring() {
    for wrap in [0, 0x8000] {
        for index in [SIZE, SIZE + 1, 0x7fff] {
            let (base, size) = (index | wrap, SIZE);
            let refused = Err(RingError::BadBase { base, size });
            assert_eq!(start(layout(SIZE), PACKED, base), refused);
        }
        assert_eq!(start(layout(SIZE), PACKED, (SIZE - 1) | wrap), Ok(()));
    }
}

#[test]
fn parts_of_a_ring_must_be_aligned_and_inside_memory() {
    use RingPart::{Available, Descriptors, Used};
    type Place = fn(&mut RingLayout) -> &mut u64;
    let places: [Place; 3] = [
        |layout| &mut layout.desc,
        |layout| &mut layout.avail,
        |layout| &mut layout.used,
    ];
    // Alignment and length of each part.
    let split = |event: u64| {
        [
            (Descriptors, 16, 16 * 8),
            (Available, 2, 4 + 2 * 8 + event),
            (Used, 4, 4 + 8 * 8 + event),
        ]
    };
    let packed = [
        (RingPart::DescriptorRing, 16, 16 * 8),
        (RingPart::DriverEvent, 4, 4),
        (RingPart::DeviceEvent, 4, 4),
    ];
    for (features, parts) in [
        (EVENT_IDX, split(2)),
        (INDIRECT, split(0)),
        (PACKED, packed),
    ] {
        for ((ring, align, len), place) in parts.into_iter().zip(places) {
            let start_at = |addr| {
                let mut layout = layout(SIZE);
                *place(&mut layout) = addr;
                start(layout, features, 0)
            };
            let last = (END - len) / align * align;
            assert_eq!(start_at(last), Ok(()), "{ring} at the end of memory");
            for addr in [last + align, END, BASE - align, 0, u64::MAX - (align - 1)] {
                let outside = RingError::RingOutsideMemory { ring, addr, len };
                assert_eq!(start_at(addr), Err(outside));
            }
            for addr in [last - 1, last - align / 2, last - (align - 1)] {
                let misaligned = RingError::Misaligned { ring, addr, align };
                assert_eq!(start_at(addr), Err(misaligned));
            }
        }
    }
}

#[test]
fn rings_must_be_aligned_in_the_mapping_too() {
    // The front-end shares its memory from an odd offset: aligned for the guest, odd for us.
    let memory = TestMemory::new(LEN);
    let guest_memory = memory.guest_memory();
    let whole = &guest_memory.regions()[0];
    let start = |by: usize| {
        let region = Region {
            len: LEN - 16,
            host: whole.host.wrapping_add(by),
            ..whole.clone()
        };
        // SAFETY: up to 16 bytes into the mapping, and 16 bytes shorter than it.
        let memory = unsafe { GuestMemory::new(vec![region]) }.unwrap();
        SplitRing::new(&memory, layout(SIZE), EVENT_IDX, 0).map(drop)
    };
    let misaligned = RingError::MisalignedMapping {
        ring: RingPart::Descriptors,
        addr: BASE,
        host: whole.host.addr() + 8,
        align: 16,
    };
    assert_eq!(start(8), Err(misaligned));
    assert_eq!(start(16), Ok(()));
}

#[test]
fn rings_may_not_lie_across_adjacent_regions() {
    let memory = TestMemory::with_regions(&[(BASE, 0x1_0010), (BASE + 0x1_0010, 0x1_0000)]);
    let error = SplitRing::new(&memory.guest_memory(), layout(SIZE), INDIRECT, 0).unwrap_err();
    let (ring, addr, len) = (RingPart::Used, BASE + 0x1_0000, 68);
    assert_eq!(error, RingError::RingOutsideMemory { ring, addr, len });
}

#[test]
fn available_index_must_not_run_ahead_of_the_queue() {
    for base in [0, 5, 0xfffc] {
        let memory = TestMemory::new(LEN);
        let driver = DriverRing::with_base(&memory, SIZE, EVENT_IDX, base);
        let mut queue = driver.device_queue();
        let mut chain = Chain::new();
        for entry in 0..SIZE {
            driver.set_avail_entry(entry, 0);
        }
        driver.write_descriptor(0, buffer(None));
        for ahead in [SIZE + 1, 0x8000, 0xffff] {
            let avail_idx = base.wrapping_add(ahead);
            driver.set_avail_idx(avail_idx);
            assert!(queue.has_available());
            let error = queue.pop(&memory.guest_memory(), &mut chain).unwrap_err();
            let expected = RingError::AvailIndexTooFarAhead {
                avail_idx,
                next_avail: base,
                ahead,
                size: SIZE,
            };
            assert_eq!(error, expected);
        }
        driver.set_avail_idx(base.wrapping_add(SIZE));
        for _ in 0..SIZE {
            assert_eq!(queue.pop(&memory.guest_memory(), &mut chain), Ok(Some(0)));
        }
        assert_eq!(queue.pop(&memory.guest_memory(), &mut chain), Ok(None));
    }
}

#[test]
fn head_must_be_in_the_table() {
    let outside = |head| Err(RingError::HeadOutOfRange { head, size: SIZE });
    for (head, expected) in [
        (SIZE - 1, Ok(Some(SIZE - 1))),
        (SIZE, outside(SIZE)),
        (0xffff, outside(0xffff)),
    ] {
        let mut broken = Broken::new(INDIRECT);
        broken.driver.write_descriptor(SIZE - 1, buffer(None));
        broken.driver.make_available(head);
        assert_eq!(broken.pop(), expected);
    }
}

#[test]
fn chains_must_end_in_their_table_and_have_readable_buffers_first() {
    let beyond = |next, table_size| {
        let index = 1;
        Err(RingError::NextOutOfRange {
            index,
            next,
            table_size,
        })
    };
    let looped = |table_size| Err(RingError::ChainLoop { table_size });
    let out_of_order = || Err(RingError::ReadableAfterWritable { index: 1 });
    let two = |next| vec![buffer(Some(1)), buffer(Some(next))];
    let back_to = |first| vec![buffer(Some(1)), buffer(Some(2)), buffer(Some(first))];
    let full = || -> Vec<_> {
        let next = |index| (index < SIZE - 1).then_some(index + 1);
        (0..SIZE).map(|index| buffer(next(index))).collect()
    };
    let writable = descriptor(BASE + 0x8_0000, 0x200, DESC_F_WRITE | DESC_F_NEXT, 1);
    let table_and_next = descriptor(BASE + 0x8_0000, 16, DESC_F_INDIRECT | DESC_F_NEXT, 1);
    let with_next = Err(RingError::IndirectWithNext { index: 0 });
    for (descriptors, expected) in [
        (vec![buffer(None)], Ok(Some(0))),
        // Other flags mean nothing.
        (vec![descriptor(BASE, 1, 0xfff8, 1)], Ok(Some(0))),
        (full(), Ok(Some(0))),
        (two(SIZE), beyond(SIZE, SIZE)),
        (two(0xffff), beyond(0xffff, SIZE)),
        (back_to(1), looped(SIZE)),
        (vec![buffer(Some(0))], looped(SIZE)),
        // Empty buffers add up to nothing.
        (vec![descriptor(0, 0, DESC_F_NEXT, 0)], looped(SIZE)),
        (vec![table_and_next, buffer(None)], with_next),
        (vec![writable, buffer(None)], out_of_order()),
    ] {
        let mut broken = Broken::new(INDIRECT);
        assert_eq!(broken.pop_of(&descriptors), expected, "{descriptors:x?}");
        if expected.is_ok() {
            assert_eq!(broken.chain.readable().len(), descriptors.len());
        }
    }
    let nested = vec![buffer(Some(1)), table(BASE + 0x8_0000, 16)];
    for (descriptors, expected) in [
        (full(), Ok(Some(0))),
        // An indirect table has its own size.
        (two(2), beyond(2, 2)),
        (back_to(0), looped(3)),
        (nested, Err(RingError::NestedIndirect { index: 1 })),
        (vec![writable, buffer(None)], out_of_order()),
    ] {
        let popped = Broken::new(INDIRECT).pop_of_table(&descriptors);
        assert_eq!(popped, expected, "in a table: {descriptors:x?}");
    }
    // The order counts across the step into the table, too.
    let mut mixed = Broken::new(INDIRECT);
    let addr = BASE + 0x9_0000;
    mixed.driver.write_descriptor_in(addr, 0, buffer(None));
    let popped = mixed.pop_of(&[writable, table(addr, 16)]);
    assert_eq!(popped, Err(RingError::ReadableAfterWritable { index: 0 }));
}

#[test]
fn indirect_tables_must_be_negotiated_and_their_length_a_number_of_descriptors_in_range() {
    let popped = Broken::new(RingFeatures::default()).pop_of_table(&[buffer(None)]);
    assert_eq!(popped, Err(RingError::IndirectNotNegotiated { index: 0 }));

    let addr = BASE + 0x8_0000;
    let max_descriptors = MAX_CHAIN_DESCRIPTORS;
    let max = u32::from(max_descriptors) * 16;
    for len in [0, 1, 15, 17, 40, max - 1, max + 1, max + 16, 0xffff_fff0] {
        let refused = RingError::IndirectLength {
            addr,
            len,
            max_descriptors,
        };
        let popped = Broken::new(INDIRECT).pop_of(&[table(addr, len)]);
        assert_eq!(popped, Err(refused));
    }
    for len in [16, 32, max] {
        let mut fine = Broken::new(INDIRECT);
        fine.driver.write_descriptor_in(addr, 0, buffer(None));
        assert_eq!(fine.pop_of(&[table(addr, len)]), Ok(Some(0)));
    }
}

#[test]
fn indirect_descriptors_must_be_inside_memory() {
    let outside = |addr, index| Err(RingError::IndirectOutsideMemory { addr, index });
    for addr in [0, BASE - 16, END, u64::MAX - 15, u64::MAX] {
        let popped = Broken::new(INDIRECT).pop_of(&[table(addr, 32)]);
        assert_eq!(popped, outside(addr, 0));
    }
    // The second descriptor is behind the end, or has no address at all: an error only when the chain gets there.
    let last_page = (u64::MAX - 0xfff, 0x1000);
    for addr in [END - 16, u64::MAX - 15] {
        let mut broken = Broken::in_regions(&[(BASE, LEN), last_page], INDIRECT);
        broken.driver.write_descriptor_in(addr, 0, buffer(Some(1)));
        assert_eq!(broken.pop_of(&[table(addr, 32)]), outside(addr, 1));
    }
    // A descriptor that is itself cut in two by the border of regions.
    let mut broken = Broken::in_regions(&[(BASE, LEN), (END, 0x1000)], INDIRECT);
    assert_eq!(broken.pop_of(&[table(END - 8, 16)]), outside(END - 8, 0));
}

#[test]
fn empty_buffers_leave_no_segment() {
    let empty = |next| descriptor(u64::MAX, 0, DESC_F_NEXT, next);
    let empty_writable = descriptor(0, 0, DESC_F_WRITE, 0);
    for (descriptors, readable) in [
        (vec![empty(1), buffer(Some(2)), empty(3), empty_writable], 1),
        (vec![empty_writable], 0),
    ] {
        let mut fine = Broken::new(INDIRECT);
        assert_eq!(fine.pop_of(&descriptors), Ok(Some(0)));
        let chain = &fine.chain;
        let segments = (chain.readable().len(), chain.writable().len());
        assert_eq!(segments, (readable, 0));
        let lengths = (chain.readable_len(), chain.writable_len());
        assert_eq!(lengths, (0x200 * readable as u64, 0));
    }
}

#[test]
fn buffers_must_be_inside_memory() {
    for (addr, len) in [
        (0, 1),
        (BASE - 1, 1),
        (BASE - 1, 2),
        (END - 1, 2),
        (END, 1),
        (END - 0x100, 0xffff_0000),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 0xff, 0xffff_0000),
    ] {
        let descriptors = [buffer(Some(1)), descriptor(addr, len, DESC_F_WRITE, 0)];
        let popped = Broken::new(INDIRECT).pop_of(&descriptors);
        let index = 1;
        let outside = RingError::BufferOutsideMemory { index, addr, len };
        assert_eq!(popped, Err(outside));
    }
    let mut fine = Broken::new(INDIRECT);
    assert_eq!(
        fine.pop_of(&[descriptor(BASE, 0x10_0000, 0, 0)]),
        Ok(Some(0))
    );
    assert_eq!(fine.chain.readable_len(), LEN);

    // With memory at address zero, where a buffer would go on if addresses wrapped around.
    let (index, addr) = (0, u64::MAX - 0xfff);
    let outside = RingError::BufferOutsideMemory {
        index,
        addr,
        len: 0x1001,
    };
    for (len, expected) in [(0x1000, Ok(Some(0))), (0x1001, Err(outside))] {
        let mut broken = Broken::in_regions(&[(0, LEN), (addr, 0x1000)], INDIRECT);
        assert_eq!(broken.pop_of(&[descriptor(addr, len, 0, 0)]), expected);
    }
}

#[test]
fn a_chain_may_not_be_longer_than_a_used_length_can_tell() {
    // As large as the longest chain: address space only, a page of it is used.
    let large = (1 << 40, (1 << 32) + (1 << 20));
    for (writable, expected) in [
        (0x7fff_ffff, Ok(Some(0))),
        (0x8000_0000, Err(RingError::ChainTooLong { len: 1 << 32 })),
    ] {
        let mut broken = Broken::in_regions(&[(BASE, LEN), large], INDIRECT);
        let popped = broken.pop_of(&[
            descriptor(large.0, 0x8000_0000, DESC_F_NEXT, 1),
            descriptor(large.0, writable, DESC_F_WRITE, 0),
        ]);
        assert_eq!(popped, expected);
    }
}

#[test]
fn a_chain_may_not_need_more_segments_than_there_is_room_for() {
    // Each buffer is two bytes across a border: two segments.
    let across = |next| descriptor(END - 1, 2, DESC_F_NEXT, next);
    let too_many = Err(RingError::TooManySegments { max: MAX_SEGMENTS });
    for (last, expected) in [(0, Ok(Some(0))), (1, too_many)] {
        let mut broken = Broken::in_regions(&[(BASE, LEN), (END, 0x1000)], INDIRECT);
        let mut table: Vec<_> = (1..).take(MAX_SEGMENTS / 2).map(across).collect();
        // An empty buffer is no segment.
        table.push(descriptor(END, last, 0, 0));
        assert_eq!(broken.pop_of_table(&table), expected);
        if expected.is_ok() {
            assert_eq!(broken.chain.readable().len(), MAX_SEGMENTS);
        }
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
    let mut driver = DriverRing::new(&memory, SIZE, INDIRECT);
    let mut queue = driver.device_queue();
    let head = driver.add(&[
        Buffer::readable(END - 0x10, 0x10),
        Buffer::writable(END - 1, 1),
    ]);
    driver.add_indirect(&[Buffer::readable(END - 0x10, 0x10)]);
    let desc = driver.layout().desc + 16 * u64::from(head);
    let mut round = 0u16;
    let rewrite = || {
        round = round.wrapping_add(1);
        // Low word of the address, of the length, the flags, and `next`, of the first chain.
        memory.store_u16(desc, if round & 1 == 0 { 0x0ff0 } else { 0x0fff });
        memory.store_u16(desc + 8, if round & 2 == 0 { 0x10 } else { 0x1000 });
        memory.store_u16(desc + 12, (round >> 2) & 7);
        memory.store_u16(desc + 14, (round >> 5) % (SIZE + 4));
    };

    let (mut taken, mut refused) = (0u16, 0u16);
    while_repeating(rewrite, || {
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
                        SplitRing::new(&guest_memory, driver.layout(), INDIRECT, index).unwrap();
                }
            }
        }
    });
    assert_eq!(taken + refused, ROUNDS);
    memory.check_canaries();
}
