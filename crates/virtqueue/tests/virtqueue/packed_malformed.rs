//! Malformed packed queues and chains: one test for each way to be wrong, and for the last value that
//! is still right. What is wrong with buffers and tables as such is the same for both forms, and
//! tested in `malformed.rs`.

use proptest::prelude::*;
use virtqueue::MAX_QUEUE_SIZE;
use virtqueue::testing::{
    DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, PACKED_DESC_F_AVAIL, PACKED_DESC_F_USED,
    PackedDriverRing, RawPackedDescriptor, TestMemory,
};
use virtqueue::{
    Chain, ChainId, MAX_CHAIN_DESCRIPTORS, PackedRing, RingError, RingFeatures, RingLayout,
    RingPart,
};

const SIZE: u16 = 8;
const BASE: u64 = 0x10_0000;
const LEN: u64 = 0x10_0000;
/// Buffers are here; rings and tables are below.
const DATA: u64 = BASE + 0x8_0000;
const INDIRECT: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: true,
};
const DIRECT: RingFeatures = RingFeatures {
    indirect: false,
    ..INDIRECT
};

fn layout(size: u16) -> RingLayout {
    RingLayout {
        size,
        desc: BASE,
        avail: BASE + 0x8000,
        used: BASE + 0x1_0000,
    }
}

fn start(layout: RingLayout, base: u16) -> Result<(), RingError> {
    let memory = TestMemory::with_regions(&[(BASE, LEN)]);
    PackedRing::new(&memory.guest_memory(), layout, INDIRECT, base).map(drop)
}

struct Broken {
    memory: TestMemory,
    driver: PackedDriverRing,
    queue: PackedRing,
    chain: Chain,
}

impl Broken {
    /// A driver that a test lets break the rules.
    fn new(features: RingFeatures) -> Broken {
        let memory = TestMemory::with_regions(&[(BASE, LEN)]);
        let driver = PackedDriverRing::new(&memory, SIZE, features);
        let queue = driver.device_queue();
        Broken {
            memory,
            driver,
            queue,
            chain: Chain::new(),
        }
    }

    /// Makes these available, from descriptor `first` on, in the first lap.
    fn descriptors(&self, first: u16, descriptors: &[RawPackedDescriptor]) {
        for (index, descriptor) in (first..).zip(descriptors) {
            let flags = descriptor.flags | PACKED_DESC_F_AVAIL;
            self.driver.write_descriptor(
                index,
                RawPackedDescriptor {
                    flags,
                    ..*descriptor
                },
            );
        }
    }

    /// Pops; after an error the queue has to stay where it is.
    fn pop(&mut self) -> Result<Option<ChainId>, RingError> {
        let next_avail = self.queue.next_avail();
        let popped = self.queue.pop(&self.memory.guest_memory(), &mut self.chain);
        if popped.is_err() {
            assert_eq!(self.queue.next_avail(), next_avail, "it stays where it is");
            assert!(self.queue.has_available(), "polling must lead to the error");
        }
        popped
    }
}

/// Pops after these were made available.
fn pop_of(
    features: RingFeatures,
    descriptors: &[RawPackedDescriptor],
) -> Result<Option<ChainId>, RingError> {
    let mut broken = Broken::new(features);
    broken.descriptors(0, descriptors);
    broken.pop()
}

fn descriptor(flags: u16) -> RawPackedDescriptor {
    RawPackedDescriptor {
        addr: DATA,
        len: 16,
        id: 7,
        flags,
    }
}

#[test]
fn sizes() {
    for size in [0, MAX_QUEUE_SIZE + 1, 4096, u16::MAX] {
        let max = MAX_QUEUE_SIZE;
        assert_eq!(
            start(layout(size), 0),
            Err(RingError::BadPackedSize { size, max })
        );
    }
    for size in [1, 2, 3, 5, 1000, 1023, MAX_QUEUE_SIZE] {
        assert_eq!(start(layout(size), 0), Ok(()), "{size}");
    }
}

#[test]
fn bases_behind_the_end() {
    for wrap in [0, 0x8000] {
        for index in [SIZE, SIZE + 1, 0x7fff] {
            let (base, size) = (index | wrap, SIZE);
            assert_eq!(
                start(layout(SIZE), base),
                Err(RingError::BadBase { base, size })
            );
        }
        assert_eq!(start(layout(SIZE), (SIZE - 1) | wrap), Ok(()));
    }
}

#[test]
fn places_that_are_misaligned_or_outside_memory() {
    let good = layout(SIZE);
    type Place = fn(&mut RingLayout) -> &mut u64;
    let parts: [(RingPart, u64, u64, Place); 3] = [
        (RingPart::DescriptorRing, 16, 16 * 8, |layout| {
            &mut layout.desc
        }),
        (RingPart::DriverEvent, 4, 4, |layout| &mut layout.avail),
        (RingPart::DeviceEvent, 4, 4, |layout| &mut layout.used),
    ];
    for (ring, align, len, place) in parts {
        for off in [1, align / 2, align - 1] {
            let mut bad = good;
            *place(&mut bad) += off;
            let addr = *place(&mut bad);
            assert_eq!(
                start(bad, 0),
                Err(RingError::Misaligned { ring, addr, align })
            );
        }
        for addr in [
            0,
            BASE - align,
            BASE + LEN - len + align,
            u64::MAX - align + 1,
        ] {
            let mut bad = good;
            *place(&mut bad) = addr;
            assert_eq!(
                start(bad, 0),
                Err(RingError::RingOutsideMemory { ring, addr, len })
            );
        }
        let mut last = good;
        *place(&mut last) = BASE + LEN - len;
        assert_eq!(start(last, 0), Ok(()), "{ring} at the end of memory");
    }
}

#[test]
fn a_chain_as_long_as_the_ring_and_one_that_never_ends() {
    let mut broken = Broken::new(DIRECT);
    let mut chain = [descriptor(DESC_F_NEXT); SIZE as usize];
    broken.descriptors(0, &chain);
    let (size, taken) = (SIZE, 0);
    assert_eq!(
        broken.pop(),
        Err(RingError::TooManyDescriptors { size, taken })
    );
    chain[SIZE as usize - 1].flags = 0;
    broken.descriptors(0, &chain);
    let whole = ChainId {
        id: 7,
        descriptors: SIZE,
    };
    assert_eq!(broken.pop(), Ok(Some(whole)));
}

#[test]
fn a_chain_into_descriptors_that_the_device_has() {
    let mut broken = Broken::new(DIRECT);
    broken.descriptors(
        0,
        &[
            descriptor(DESC_F_NEXT),
            descriptor(DESC_F_NEXT),
            descriptor(0),
        ],
    );
    assert_eq!(broken.pop().unwrap().unwrap().descriptors, 3);
    broken.descriptors(3, &[descriptor(DESC_F_NEXT); 5]);
    // The first three belong to the device still, whatever the driver writes there.
    for index in 0..3 {
        let next = if index < 2 { DESC_F_NEXT } else { 0 };
        let flags = PACKED_DESC_F_USED | next;
        broken.driver.write_descriptor(index, descriptor(flags));
    }
    let (size, taken) = (SIZE, 3);
    assert_eq!(
        broken.pop(),
        Err(RingError::TooManyDescriptors { size, taken })
    );
}

#[test]
fn a_full_ring_that_goes_on() {
    let mut broken = Broken::new(DIRECT);
    broken.descriptors(0, &[descriptor(0); SIZE as usize]);
    for _ in 0..SIZE {
        assert!(broken.pop().unwrap().is_some());
    }
    assert_eq!(broken.pop(), Ok(None));
    broken
        .driver
        .write_descriptor(0, descriptor(PACKED_DESC_F_USED));
    let (size, taken) = (SIZE, SIZE);
    assert_eq!(
        broken.pop(),
        Err(RingError::TooManyDescriptors { size, taken })
    );
}

#[test]
fn flags_that_say_something_else_than_available() {
    // Of the first descriptor: there is none.
    for flags in [
        0,
        PACKED_DESC_F_USED,
        PACKED_DESC_F_USED | PACKED_DESC_F_AVAIL,
    ] {
        let mut broken = Broken::new(DIRECT);
        broken.driver.write_descriptor(0, descriptor(flags));
        assert_eq!(broken.pop(), Ok(None), "{flags:#x}");
        // Of a further one: it belongs to the chain and cannot be missing.
        broken.descriptors(0, &[descriptor(DESC_F_NEXT)]);
        broken.driver.write_descriptor(1, descriptor(flags));
        assert_eq!(
            broken.pop(),
            Err(RingError::NotAvailable { index: 1 }),
            "{flags:#x}"
        );
    }
}

#[test]
fn names_are_anything_and_may_be_the_same() {
    let mut broken = Broken::new(DIRECT);
    for (index, id) in (0..).zip([0, u16::MAX, u16::MAX, SIZE]) {
        broken.descriptors(
            index,
            &[RawPackedDescriptor {
                id,
                ..descriptor(0)
            }],
        );
        let descriptors = 1;
        assert_eq!(broken.pop(), Ok(Some(ChainId { id, descriptors })));
        broken.queue.push(ChainId { id, descriptors }, 0);
        broken.queue.publish();
        let used = broken.driver.descriptor(index);
        assert_eq!((used.id, used.len), (id, 0));
        assert_eq!(used.flags, PACKED_DESC_F_AVAIL | PACKED_DESC_F_USED);
    }
}

#[test]
fn indirect_descriptors_where_none_may_be() {
    let indirect = descriptor(DESC_F_INDIRECT);
    let popped = pop_of(DIRECT, &[indirect]);
    assert_eq!(popped, Err(RingError::IndirectNotNegotiated { index: 0 }));
    let and_next = descriptor(DESC_F_INDIRECT | DESC_F_NEXT);
    let popped = pop_of(INDIRECT, &[and_next, descriptor(0)]);
    assert_eq!(popped, Err(RingError::IndirectWithNext { index: 0 }));
    let popped = pop_of(INDIRECT, &[descriptor(DESC_F_NEXT), indirect]);
    assert_eq!(popped, Err(RingError::IndirectInChain { index: 1 }));
}

#[test]
fn indirect_tables_of_a_bad_length() {
    let (addr, max_descriptors) = (DATA, MAX_CHAIN_DESCRIPTORS);
    let longest = 16 * u32::from(max_descriptors);
    let table = |len| RawPackedDescriptor {
        len,
        ..descriptor(DESC_F_INDIRECT)
    };
    for len in [0, 1, 15, 17, longest + 1, longest + 16, u32::MAX] {
        let popped = pop_of(INDIRECT, &[table(len)]);
        assert_eq!(
            popped,
            Err(RingError::IndirectLength {
                addr,
                len,
                max_descriptors
            })
        );
    }
    // The longest: all of its descriptors count, whatever their flags but WRITE.
    let mut broken = Broken::new(INDIRECT);
    for at in (DATA..).step_by(16).take(max_descriptors.into()) {
        let flags = DESC_F_WRITE | DESC_F_INDIRECT | DESC_F_NEXT;
        broken.driver.write_at(at, descriptor(flags));
    }
    broken.descriptors(0, &[table(longest)]);
    assert!(broken.pop().unwrap().is_some());
    assert_eq!(broken.chain.writable_len(), u64::from(longest));
}

#[test]
fn buffers_that_are_not_in_memory_or_in_the_wrong_order() {
    let (index, addr, len) = (0, BASE + LEN - 15, 16);
    let popped = pop_of(
        DIRECT,
        &[RawPackedDescriptor {
            addr,
            ..descriptor(0)
        }],
    );
    assert_eq!(
        popped,
        Err(RingError::BufferOutsideMemory { index, addr, len })
    );
    let popped = pop_of(
        DIRECT,
        &[descriptor(DESC_F_NEXT | DESC_F_WRITE), descriptor(0)],
    );
    assert_eq!(popped, Err(RingError::ReadableAfterWritable { index: 1 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever stands in the ring: an error or chains, never more than fit, nothing outside memory.
    #[test]
    fn garbage_breaks_the_queue_at_most(
        size in 1..20u16,
        base: u16,
        bytes in proptest::collection::vec(any::<u8>(), 20 * 16),
        addresses in proptest::collection::vec(0..3u8, 20),
        event: u32,
        event_idx: bool,
    ) {
        let memory = TestMemory::with_regions(&[(BASE, LEN)]);
        let features = RingFeatures { event_idx, ..INDIRECT };
        let driver = PackedDriverRing::new(&memory, size, features);
        memory.write(driver.layout().desc, &bytes[..usize::from(size) * 16]);
        memory.write(driver.layout().avail, &event.to_le_bytes());
        for (index, kind) in (0..size).zip(addresses) {
            // Often enough a buffer that exists.
            if kind > 0 {
                let mut descriptor = driver.descriptor(index);
                descriptor.addr = DATA + (descriptor.addr & 0xfff);
                descriptor.len &= if kind == 1 { 0xff0 } else { 0xfff };
                driver.write_descriptor(index, descriptor);
            }
        }
        let guest_memory = memory.guest_memory();
        let base = (base & 0x8000) | ((base & 0x7fff) % size);
        let mut queue = PackedRing::new(&guest_memory, driver.layout(), features, base)?;
        let (mut chain, mut taken, mut chains) = (Chain::new(), 0, Vec::new());
        while let Ok(Some(popped)) = queue.pop(&guest_memory, &mut chain) {
            taken += popped.descriptors;
            prop_assert!(popped.descriptors > 0 && taken <= size);
            for segment in [chain.readable(), chain.writable()].concat() {
                memory.guest_addr_of(&segment);
            }
            chains.push(popped);
        }
        for popped in chains {
            queue.push(popped, 1);
        }
        queue.publish();
        queue.enable_kicks_and_recheck();
        memory.check_canaries();
    }
}
