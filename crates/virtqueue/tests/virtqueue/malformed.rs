//! Malformed queues and chains: one test for each way to be wrong, and for the last value that is
//! still right.

use std::sync::Arc;

use virtqueue::MAX_QUEUE_SIZE;
use virtqueue::testing::{
    DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, DriverRing, RawDescriptor, TestMemory,
};
use virtqueue::{
    Chain, GuestMemory, MAX_CHAIN_DESCRIPTORS, MAX_SEGMENTS, Region, RingError, RingFeatures,
    RingLayout, RingPart, SplitRing,
};

const SIZE: u16 = 8;
const BASE: u64 = 0x10_0000;
const LEN: u64 = 0x10_0000;
const INDIRECT: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: false,
};
const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: false,
    packed: false,
};

/// Starts a queue of `size` entries with its rings at these addresses in `BASE..BASE + LEN`.
fn start(layout: RingLayout, features: RingFeatures) -> Result<(), RingError> {
    let memory = TestMemory::with_regions(&[(BASE, LEN)]);
    SplitRing::new(&memory.guest_memory(), layout, features, 0).map(drop)
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
        Broken::in_regions(&[(BASE, LEN)], SIZE, features)
    }

    /// A driver that a test lets break the rules, in these regions.
    fn in_regions(regions: &[(u64, u64)], size: u16, features: RingFeatures) -> Broken {
        let memory = TestMemory::with_regions(regions);
        let driver = DriverRing::new(&memory, size, features);
        let queue = driver.device_queue();
        Broken {
            memory,
            driver,
            queue,
            chain: Chain::new(),
        }
    }

    fn descriptors(&mut self, descriptors: &[RawDescriptor]) {
        for (index, descriptor) in (0..).zip(descriptors) {
            self.driver.write_descriptor(index, *descriptor);
        }
        self.driver.make_available(0);
    }

    /// An indirect table with these descriptors, referred to by descriptor 0.
    fn indirect(&mut self, descriptors: &[RawDescriptor]) {
        let len = 16 * u32::try_from(descriptors.len()).unwrap();
        let addr = self.memory.alloc(u64::from(len), 16);
        for (index, descriptor) in (0..).zip(descriptors) {
            self.driver.write_descriptor_in(addr, index, *descriptor);
        }
        self.descriptors(&[descriptor(addr, len, DESC_F_INDIRECT, 0)]);
    }

    /// Pops; after an error the queue has to stay where it is.
    fn pop(&mut self) -> Result<Option<u16>, RingError> {
        let next_avail = self.queue.next_avail();
        let popped = self.queue.pop(&self.memory.guest_memory(), &mut self.chain);
        if popped.is_err() {
            assert_eq!(
                self.queue.next_avail(),
                next_avail,
                "a broken queue stays where it is"
            );
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

/// Pops a chain of these descriptors.
fn pop_of(descriptors: &[RawDescriptor]) -> Result<Option<u16>, RingError> {
    let mut broken = Broken::new(INDIRECT);
    broken.descriptors(descriptors);
    broken.pop()
}

/// Pops a chain in an indirect table of these descriptors.
fn pop_of_table(descriptors: &[RawDescriptor]) -> Result<Option<u16>, RingError> {
    let mut broken = Broken::new(INDIRECT);
    broken.indirect(descriptors);
    broken.pop()
}

#[test]
fn size_must_be_a_power_of_two_in_range() {
    let max = MAX_QUEUE_SIZE;
    for size in [0, 3, 24, max - 1, max + 1, max * 2, 0xffff] {
        let refused = Err(RingError::BadSize { size, max });
        assert_eq!(start(layout(size), EVENT_IDX), refused);
    }
    for exponent in 0..=10 {
        assert_eq!(start(layout(1 << exponent), EVENT_IDX), Ok(()));
    }
}

#[test]
fn rings_must_be_aligned() {
    type Place = fn(&mut RingLayout) -> &mut u64;
    let rings: [(RingPart, u64, Place); 3] = [
        (RingPart::Descriptors, 16, |layout| &mut layout.desc),
        (RingPart::Available, 2, |layout| &mut layout.avail),
        (RingPart::Used, 4, |layout| &mut layout.used),
    ];
    for (ring, align, place) in rings {
        let moved = |by| {
            let mut layout = layout(SIZE);
            *place(&mut layout) += by;
            (*place(&mut layout), start(layout, EVENT_IDX))
        };
        let (addr, started) = moved(align / 2);
        assert_eq!(started, Err(RingError::Misaligned { ring, addr, align }));
        assert_eq!(moved(align).1, Ok(()), "{ring}");
    }
}

#[test]
fn rings_must_be_aligned_in_the_mapping_too() {
    // The front-end shares its memory from an odd offset: aligned for the guest, odd for us.
    let memory = TestMemory::new(LEN);
    let guest_memory = memory.guest_memory();
    let whole = &guest_memory.regions()[0];
    let shifted = |by: usize| Region {
        len: LEN - 16,
        host: whole.host.wrapping_add(by),
        ..whole.clone()
    };
    let start = |by| {
        // SAFETY: up to 16 bytes into the mapping, and 16 bytes shorter than it.
        let memory = unsafe { GuestMemory::new(vec![shifted(by)]) }.unwrap();
        SplitRing::new(&memory, layout(SIZE), EVENT_IDX, 0).map(drop)
    };
    let host = whole.host.addr();
    let misaligned = |ring, addr, offset, align| {
        Err(RingError::MisalignedMapping {
            ring,
            addr,
            host: host + offset,
            align,
        })
    };
    assert_eq!(start(8), misaligned(RingPart::Descriptors, BASE, 8, 16));
    assert_eq!(start(16), Ok(()));
}

#[test]
fn rings_must_be_inside_one_region() {
    for features in [EVENT_IDX, INDIRECT] {
        let event: u64 = if features.event_idx { 2 } else { 0 };
        let good = layout(SIZE);
        let end = BASE + LEN;
        let entries = u64::from(SIZE);
        // Length, alignment, and a layout with the ring at an address.
        type Place<'a> = &'a dyn Fn(u64) -> RingLayout;
        let rings: [(RingPart, u64, u64, Place<'_>); 3] = [
            (RingPart::Descriptors, 16 * entries, 16, &|desc| {
                RingLayout { desc, ..good }
            }),
            (RingPart::Available, 4 + 2 * entries + event, 2, &|avail| {
                RingLayout { avail, ..good }
            }),
            (RingPart::Used, 4 + 8 * entries + event, 4, &|used| {
                RingLayout { used, ..good }
            }),
        ];
        for (ring, len, align, place) in rings {
            let last = (end - len) / align * align;
            assert_eq!(
                start(place(last), features),
                Ok(()),
                "{ring} at the end of its region"
            );
            for addr in [last + align, end, BASE - align, u64::MAX - (align - 1)] {
                let outside = RingError::RingOutsideMemory { ring, addr, len };
                assert_eq!(start(place(addr), features), Err(outside));
            }
        }
    }
}

#[test]
fn rings_may_not_lie_across_adjacent_regions() {
    let memory = TestMemory::with_regions(&[(BASE, 0x1_0010), (BASE + 0x1_0010, 0x1_0000)]);
    let error = SplitRing::new(&memory.guest_memory(), layout(SIZE), INDIRECT, 0).unwrap_err();
    let addr = BASE + 0x1_0000;
    assert_eq!(
        error,
        RingError::RingOutsideMemory {
            ring: RingPart::Used,
            addr,
            len: 68
        }
    );
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
    for head in [SIZE, 0xffff] {
        let mut broken = Broken::new(INDIRECT);
        broken.driver.make_available(head);
        assert_eq!(
            broken.pop(),
            Err(RingError::HeadOutOfRange { head, size: SIZE })
        );
    }
    let mut last = Broken::new(INDIRECT);
    last.driver.write_descriptor(SIZE - 1, buffer(None));
    last.driver.make_available(SIZE - 1);
    assert_eq!(last.pop(), Ok(Some(SIZE - 1)));
}

#[test]
fn next_must_be_in_the_table() {
    let beyond = |next, table_size| {
        let index = 1;
        Err(RingError::NextOutOfRange {
            index,
            next,
            table_size,
        })
    };
    for next in [SIZE, 0xffff] {
        let chain = [buffer(Some(1)), buffer(Some(next))];
        assert_eq!(pop_of(&chain), beyond(next, SIZE));
    }
    // An indirect table has its own size.
    let table = [buffer(Some(1)), buffer(Some(2))];
    assert_eq!(pop_of_table(&table), beyond(2, 2));
    // And `next` means nothing without the flag.
    assert_eq!(pop_of(&[buffer(None)]), Ok(Some(0)));
}

#[test]
fn loops_are_found() {
    let looped = |table_size| Err(RingError::ChainLoop { table_size });
    let back_to = |first| [buffer(Some(1)), buffer(Some(2)), buffer(Some(first))];
    assert_eq!(pop_of(&back_to(1)), looped(SIZE));
    assert_eq!(pop_of(&[buffer(Some(0))]), looped(SIZE));
    // Also one of empty buffers, which add up to nothing.
    let empty = descriptor(0, 0, DESC_F_NEXT, 0);
    assert_eq!(pop_of(&[empty]), looped(SIZE));
    assert_eq!(pop_of_table(&back_to(0)), looped(3));
}

#[test]
fn a_chain_may_fill_its_table() {
    let mut full = Broken::new(INDIRECT);
    let last = SIZE - 1;
    let descriptors: Vec<_> = (0..SIZE)
        .map(|index| buffer((index < last).then_some(index + 1)))
        .collect();
    full.descriptors(&descriptors);
    assert_eq!(full.pop(), Ok(Some(0)));
    assert_eq!(full.chain.readable().len(), usize::from(SIZE));

    let mut indirect = Broken::new(INDIRECT);
    indirect.indirect(&descriptors);
    assert_eq!(indirect.pop(), Ok(Some(0)));
    assert_eq!(indirect.chain.readable().len(), usize::from(SIZE));
}

#[test]
fn indirect_tables_must_be_negotiated_and_end_the_chain() {
    let mut broken = Broken::new(RingFeatures::default());
    broken.indirect(&[buffer(None)]);
    let index = 0;
    assert_eq!(
        broken.pop(),
        Err(RingError::IndirectNotNegotiated { index })
    );

    let table = descriptor(BASE + 0x8_0000, 16, DESC_F_INDIRECT | DESC_F_NEXT, 1);
    let popped = pop_of(&[table, buffer(None)]);
    assert_eq!(popped, Err(RingError::IndirectWithNext { index }));
    let nested = descriptor(BASE + 0x8_0000, 16, DESC_F_INDIRECT, 0);
    let popped = pop_of_table(&[buffer(Some(1)), nested]);
    assert_eq!(popped, Err(RingError::NestedIndirect { index: 1 }));
}

#[test]
fn indirect_length_must_be_a_number_of_descriptors_in_range() {
    let addr = BASE + 0x8_0000;
    let max_descriptors = MAX_CHAIN_DESCRIPTORS;
    let max = u32::from(max_descriptors) * 16;
    for len in [
        0,
        1,
        15,
        17,
        40,
        max - 1,
        max + 1,
        max + 16,
        0x10_0000,
        0xffff_fff0,
    ] {
        let popped = pop_of(&[descriptor(addr, len, DESC_F_INDIRECT, 0)]);
        assert_eq!(
            popped,
            Err(RingError::IndirectLength {
                addr,
                len,
                max_descriptors
            })
        );
    }
    for len in [16, 32, max] {
        let mut fine = Broken::new(INDIRECT);
        fine.driver.write_descriptor_in(addr, 0, buffer(None));
        fine.descriptors(&[descriptor(addr, len, DESC_F_INDIRECT, 0)]);
        assert_eq!(fine.pop(), Ok(Some(0)));
    }
}

#[test]
fn indirect_descriptors_must_be_inside_memory() {
    let outside = |addr, index| Err(RingError::IndirectOutsideMemory { addr, index });
    for addr in [0, BASE - 16, BASE + LEN, u64::MAX - 15, u64::MAX] {
        let popped = pop_of(&[descriptor(addr, 32, DESC_F_INDIRECT, 0)]);
        assert_eq!(popped, outside(addr, 0));
    }
    // The second descriptor is behind the end: an error only when the chain gets there.
    let addr = BASE + LEN - 16;
    let mut broken = Broken::new(INDIRECT);
    broken.driver.write_descriptor_in(addr, 0, buffer(Some(1)));
    broken.descriptors(&[descriptor(addr, 32, DESC_F_INDIRECT, 0)]);
    assert_eq!(broken.pop(), outside(addr, 1));

    // At the very end of the address space, the second one has no address at all.
    let last = u64::MAX - 0xfff;
    let mut broken = Broken::in_regions(&[(BASE, LEN), (last, 0x1000)], SIZE, INDIRECT);
    let addr = u64::MAX - 15;
    broken.driver.write_descriptor_in(addr, 0, buffer(Some(1)));
    broken.descriptors(&[descriptor(addr, 32, DESC_F_INDIRECT, 0)]);
    assert_eq!(broken.pop(), outside(addr, 1));

    // A descriptor that is itself cut in two by the border of regions.
    let border = BASE + LEN;
    let mut broken = Broken::in_regions(&[(BASE, LEN), (border, 0x1000)], SIZE, INDIRECT);
    broken.descriptors(&[descriptor(border - 8, 16, DESC_F_INDIRECT, 0)]);
    assert_eq!(broken.pop(), outside(border - 8, 0));
}

#[test]
fn readable_buffers_come_first() {
    let writable = descriptor(BASE + 0x8_0000, 0x200, DESC_F_WRITE | DESC_F_NEXT, 1);
    let refused = |index| Err(RingError::ReadableAfterWritable { index });
    assert_eq!(pop_of(&[writable, buffer(None)]), refused(1));
    assert_eq!(pop_of_table(&[writable, buffer(None)]), refused(1));
    // Across the step into the table, too.
    let mut mixed = Broken::new(INDIRECT);
    let table = BASE + 0x9_0000;
    mixed.driver.write_descriptor_in(table, 0, buffer(None));
    mixed.descriptors(&[writable, descriptor(table, 16, DESC_F_INDIRECT, 0)]);
    assert_eq!(mixed.pop(), refused(0));
}

#[test]
fn empty_buffers_leave_no_segment() {
    let mut fine = Broken::new(INDIRECT);
    let empty = |next| descriptor(u64::MAX, 0, DESC_F_NEXT, next);
    let empty_writable = descriptor(0, 0, DESC_F_WRITE, 0);
    fine.descriptors(&[empty(1), buffer(Some(2)), empty(3), empty_writable]);
    assert_eq!(fine.pop(), Ok(Some(0)));
    assert_eq!(fine.chain.readable().len(), 1);
    assert_eq!(fine.chain.readable_len(), 0x200);
    assert_eq!(fine.chain.writable().len(), 0);

    let mut nothing = Broken::new(INDIRECT);
    nothing.descriptors(&[empty_writable]);
    assert_eq!(nothing.pop(), Ok(Some(0)));
    assert_eq!(
        (nothing.chain.readable_len(), nothing.chain.writable_len()),
        (0, 0)
    );
}

#[test]
fn buffers_must_be_inside_memory() {
    let end = BASE + LEN;
    for (addr, len) in [
        (0, 1),
        (BASE - 1, 1),
        (BASE - 1, 2),
        (end - 1, 2),
        (end, 1),
        (end - 0x100, 0xffff_0000),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 0xff, 0xffff_0000),
    ] {
        let popped = pop_of(&[buffer(Some(1)), descriptor(addr, len, DESC_F_WRITE, 0)]);
        let index = 1;
        assert_eq!(
            popped,
            Err(RingError::BufferOutsideMemory { index, addr, len })
        );
    }
    let mut fine = Broken::new(INDIRECT);
    fine.descriptors(&[descriptor(BASE, 0x10_0000, 0, 0)]);
    assert_eq!(fine.pop(), Ok(Some(0)));
    assert_eq!(fine.chain.readable_len(), LEN);
}

#[test]
fn a_buffer_may_not_pass_the_end_of_the_address_space() {
    // With memory at address zero, where it would go on if addresses wrapped around.
    let last = u64::MAX - 0xfff;
    let mut broken = Broken::in_regions(&[(0, LEN), (last, 0x1000)], SIZE, INDIRECT);
    broken.descriptors(&[descriptor(last, 0x1001, 0, 0)]);
    let error = RingError::BufferOutsideMemory {
        index: 0,
        addr: last,
        len: 0x1001,
    };
    assert_eq!(broken.pop(), Err(error));

    let mut fine = Broken::in_regions(&[(0, LEN), (last, 0x1000)], SIZE, INDIRECT);
    fine.descriptors(&[descriptor(last, 0x1000, 0, 0)]);
    assert_eq!(fine.pop(), Ok(Some(0)));
}

/// Memory as large as the longest chain: address space only, a page of it is used.
fn large() -> Broken {
    Broken::in_regions(
        &[(BASE, LEN), (1 << 40, (1 << 32) + (1 << 20))],
        SIZE,
        INDIRECT,
    )
}

#[test]
fn a_chain_may_not_be_longer_than_a_used_length_can_tell() {
    let big = |len, flags, next| descriptor(1 << 40, len, flags, next);

    let mut broken = large();
    broken.descriptors(&[
        big(0x8000_0000, DESC_F_NEXT, 1),
        big(0x8000_0000, DESC_F_WRITE, 0),
    ]);
    assert_eq!(broken.pop(), Err(RingError::ChainTooLong { len: 1 << 32 }));

    let mut fine = large();
    fine.descriptors(&[
        big(0x8000_0000, DESC_F_NEXT, 1),
        big(0x7fff_ffff, DESC_F_WRITE, 0),
    ]);
    assert_eq!(fine.pop(), Ok(Some(0)));
    assert_eq!(
        fine.chain.readable_len() + fine.chain.writable_len(),
        u64::from(u32::MAX)
    );
}

#[test]
fn a_chain_may_not_need_more_segments_than_there_is_room_for() {
    // Each buffer is two bytes across a border: two segments.
    let border = BASE + LEN;
    let across = |next| descriptor(border - 1, 2, DESC_F_NEXT, next);
    let chain = |pairs: usize, single: bool| {
        let mut broken = Broken::in_regions(&[(BASE, LEN), (border, 0x1000)], SIZE, INDIRECT);
        let mut table: Vec<_> = (1..).take(pairs).map(across).collect();
        if single {
            table.push(descriptor(border, 1, 0, 0));
        } else {
            table.last_mut().unwrap().flags = 0;
        }
        broken.indirect(&table);
        broken
    };
    let mut fine = chain(MAX_SEGMENTS / 2, false);
    assert_eq!(fine.pop(), Ok(Some(0)));
    assert_eq!(fine.chain.readable().len(), MAX_SEGMENTS);

    let mut broken = chain(MAX_SEGMENTS / 2, true);
    assert_eq!(
        broken.pop(),
        Err(RingError::TooManySegments { max: MAX_SEGMENTS })
    );
}

#[test]
fn errors_tell_what_was_found_and_what_was_expected() {
    let text = RingError::HeadOutOfRange { head: 9, size: 8 }.to_string();
    assert!(text.contains('9') && text.contains('8'), "{text}");
    let text = RingError::Misaligned {
        ring: RingPart::Used,
        addr: 0x1002,
        align: 4,
    }
    .to_string();
    assert!(
        text.contains("used ring at 0x1002") && text.contains("4 bytes"),
        "{text}"
    );
    let text = RingError::ChainTooLong { len: 1 << 32 }.to_string();
    assert!(
        text.contains("4294967296") && text.contains("4294967295"),
        "{text}"
    );
}

#[test]
fn an_error_leaves_the_queue_to_its_owner() {
    // The daemon may drop a broken queue, and the memory with it, in any order.
    let mut broken = Broken::new(INDIRECT);
    broken.driver.make_available(SIZE);
    assert!(broken.pop().is_err());
    let Broken {
        memory,
        driver,
        queue,
        ..
    } = broken;
    let old: Arc<GuestMemory> = memory.guest_memory();
    drop((memory, driver));
    drop(old);
    assert!(queue.has_available(), "the queue keeps its rings mapped");
}
