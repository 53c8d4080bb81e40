//! Malformed chains of packed queues: each way to be wrong, and the last value that is still right. What is wrong with layouts,
//! buffers and tables as such is the same for both forms, and tested in `malformed.rs`.

use virtqueue::testing::{
    DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, PACKED_DESC_F_AVAIL, PACKED_DESC_F_USED,
    PackedDriverRing, RawPackedDescriptor, TestMemory,
};
use virtqueue::{Chain, ChainId, MAX_CHAIN_DESCRIPTORS, PackedRing, RingError, RingFeatures};

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
            let mut available = *descriptor;
            available.flags |= PACKED_DESC_F_AVAIL;
            self.driver.write_descriptor(index, available);
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

fn descriptor(flags: u16) -> RawPackedDescriptor {
    RawPackedDescriptor {
        addr: DATA,
        len: 16,
        id: 7,
        flags,
    }
}

/// An indirect table of so many bytes.
fn table(len: u32) -> RawPackedDescriptor {
    RawPackedDescriptor {
        len,
        ..descriptor(DESC_F_INDIRECT)
    }
}

#[test]
fn a_chain_that_breaks_a_rule_is_refused() {
    let max_descriptors = MAX_CHAIN_DESCRIPTORS;
    let longest = 16 * u32::from(max_descriptors);
    let mut cases = vec![
        (
            DIRECT,
            vec![table(16)],
            RingError::IndirectNotNegotiated { index: 0 },
        ),
        (
            INDIRECT,
            vec![descriptor(DESC_F_INDIRECT | DESC_F_NEXT), descriptor(0)],
            RingError::IndirectWithNext { index: 0 },
        ),
        (
            INDIRECT,
            vec![descriptor(DESC_F_NEXT), table(16)],
            RingError::IndirectInChain { index: 1 },
        ),
        (
            DIRECT,
            vec![descriptor(DESC_F_NEXT | DESC_F_WRITE), descriptor(0)],
            RingError::ReadableAfterWritable { index: 1 },
        ),
    ];
    let addr = BASE + LEN - 15;
    let (index, len) = (0, 16);
    let beyond = RawPackedDescriptor {
        addr,
        ..descriptor(0)
    };
    let outside = RingError::BufferOutsideMemory { index, addr, len };
    cases.push((DIRECT, vec![beyond], outside));
    for len in [0, 1, 15, 17, longest + 1, longest + 16, u32::MAX] {
        let bad_length = RingError::IndirectLength {
            addr: DATA,
            len,
            max_descriptors,
        };
        cases.push((INDIRECT, vec![table(len)], bad_length));
    }
    for (features, descriptors, error) in cases {
        let mut broken = Broken::new(features);
        broken.descriptors(0, &descriptors);
        assert_eq!(broken.pop(), Err(error), "{descriptors:x?}");
    }
}

#[test]
fn all_descriptors_of_the_longest_table_count_whatever_their_flags_but_write() {
    let longest = 16 * u32::from(MAX_CHAIN_DESCRIPTORS);
    let mut fine = Broken::new(INDIRECT);
    for at in (DATA..).step_by(16).take(MAX_CHAIN_DESCRIPTORS.into()) {
        let flags = DESC_F_WRITE | DESC_F_INDIRECT | DESC_F_NEXT;
        fine.driver.write_at(at, descriptor(flags));
    }
    fine.descriptors(0, &[table(longest)]);
    assert!(fine.pop().unwrap().is_some());
    assert_eq!(fine.chain.writable_len(), u64::from(longest));
}

#[test]
fn a_chain_that_never_ends_has_more_descriptors_than_are_free() {
    let more_than_free = |taken| Err(RingError::TooManyDescriptors { size: SIZE, taken });
    // All of the ring: the last one ends it, or goes on.
    let mut broken = Broken::new(DIRECT);
    let mut chain = [descriptor(DESC_F_NEXT); SIZE as usize];
    broken.descriptors(0, &chain);
    assert_eq!(broken.pop(), more_than_free(0));
    chain[SIZE as usize - 1].flags = 0;
    broken.descriptors(0, &chain);
    assert_eq!(broken.pop().unwrap().unwrap().descriptors, SIZE);

    // The first descriptors belong to the device still, whatever the driver writes there.
    for taken in [3, SIZE] {
        let mut broken = Broken::new(DIRECT);
        broken.descriptors(0, &vec![descriptor(0); taken.into()]);
        for _ in 0..taken {
            assert!(broken.pop().unwrap().is_some());
        }
        assert_eq!(broken.pop(), Ok(None));
        broken.descriptors(taken, &vec![descriptor(DESC_F_NEXT); (SIZE - taken).into()]);
        for index in 0..taken {
            let again = descriptor(PACKED_DESC_F_USED);
            broken.driver.write_descriptor(index, again);
        }
        assert_eq!(broken.pop(), more_than_free(taken));
    }
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
        let missing = RingError::NotAvailable { index: 1 };
        assert_eq!(broken.pop(), Err(missing), "{flags:#x}");
    }
}

#[test]
fn names_are_anything_and_may_be_the_same() {
    let mut broken = Broken::new(DIRECT);
    for (index, id) in (0..).zip([0, u16::MAX, u16::MAX, SIZE]) {
        let mut named = descriptor(0);
        named.id = id;
        broken.descriptors(index, &[named]);
        let chain = ChainId { id, descriptors: 1 };
        assert_eq!(broken.pop(), Ok(Some(chain)));
        broken.queue.push(chain, 0);
        broken.queue.publish();
        let used = broken.driver.descriptor(index);
        let flags = PACKED_DESC_F_AVAIL | PACKED_DESC_F_USED;
        assert_eq!((used.id, used.len, used.flags), (id, 0, flags));
    }
}
