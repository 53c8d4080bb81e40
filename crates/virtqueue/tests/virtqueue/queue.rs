//! A well-behaved driver and the queue, split and packed: places of indirect tables, restarts, memory maps, returned chains, and
//! notifications. Chains and used entries as such are compared with other implementations in `oracle` and `packed`.

use test_support::vhost_user::ring::Ring;
use virtqueue::testing::{
    Buffer, DESC_F_INDIRECT, DESC_F_WRITE, DriverRing, PackedDriverRing, RawDescriptor, TestMemory,
};
use virtqueue::{Chain, ChainId, Queue, RingError, RingFeatures, SplitRing};

const SIZE: u16 = 8;
const BASE: u64 = 0x10_0000;
const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: true,
    packed: false,
};
const FLAGS: RingFeatures = RingFeatures {
    event_idx: false,
    ..EVENT_IDX
};
const PACKED: RingFeatures = RingFeatures {
    packed: true,
    ..EVENT_IDX
};

/// Both sides of a queue.
struct Both {
    memory: TestMemory,
    driver: Ring,
    queue: Queue,
    chain: Chain,
    buffer: u64,
}

impl Both {
    fn new(features: RingFeatures) -> Both {
        let memory = TestMemory::new(0x10_0000);
        let driver = Ring::new(&memory, SIZE, features);
        Both::of(memory, driver, features)
    }

    /// A split queue with these indices.
    fn at_index(features: RingFeatures, base: u16) -> Both {
        let memory = TestMemory::new(0x10_0000);
        let driver = Ring::split_at(&memory, SIZE, features, base);
        Both::of(memory, driver, features)
    }

    /// The device of a driver.
    fn of(memory: TestMemory, driver: Ring, features: RingFeatures) -> Both {
        let (guest_memory, layout) = (memory.guest_memory(), driver.layout());
        let queue = Queue::new(&guest_memory, layout, features, driver.base()).unwrap();
        let buffer = memory.alloc(0x1000, 0x1000);
        Both {
            memory,
            driver,
            queue,
            chain: Chain::new(),
            buffer,
        }
    }

    /// Makes `count` small requests available.
    fn add(&mut self, count: u16) -> Vec<u16> {
        let buffer = Buffer::writable(self.buffer, 1);
        let added = (0..count).map(|_| self.driver.add(&[buffer])).collect();
        self.driver.publish();
        added
    }

    fn pop(&mut self) -> Option<ChainId> {
        let memory = self.memory.guest_memory();
        self.queue.pop(&memory, &mut self.chain).unwrap()
    }

    /// Pops all there is, and pushes it.
    fn pop_and_push_all(&mut self) {
        while let Some(chain) = self.pop() {
            self.queue.push(chain, 0);
        }
    }

    /// Completes `count` new requests: is the guest to be signalled?
    fn complete(&mut self, count: u16) -> bool {
        let added = self.add(count);
        self.pop_and_push_all();
        let signal = self.queue.publish();
        assert_eq!(self.driver.take_used(), added);
        signal
    }
}

#[test]
fn an_indirect_table_may_be_at_any_address_and_its_write_flag_means_nothing() {
    let border = BASE + 0x1_0000;
    // In the middle of a region, and across two of them.
    for table in [BASE + 0x1003, border - 32] {
        let memory = TestMemory::with_regions(&[(BASE, 0x1_0000), (border, 0x1000)]);
        let mut driver = DriverRing::new(&memory, SIZE, FLAGS);
        let mut queue = driver.device_queue();
        for index in 0..4 {
            let descriptor = RawDescriptor {
                addr: BASE + 0x123,
                len: 0x10 + u32::from(index),
                flags: u16::from(index != 3),
                next: index + 1,
            };
            driver.write_descriptor_in(table, index, descriptor);
        }
        let reference = RawDescriptor {
            addr: table,
            len: 64,
            flags: DESC_F_INDIRECT | DESC_F_WRITE,
            next: 0,
        };
        driver.write_descriptor(0, reference);
        driver.make_available(0);
        let mut chain = Chain::new();
        assert_eq!(queue.pop(&memory.guest_memory(), &mut chain), Ok(Some(0)));
        let segments = chain.readable().iter();
        let segments: Vec<_> = segments
            .map(|segment| (memory.guest_addr_of(segment), segment.iov_len))
            .collect();
        let expected = [0x10, 0x11, 0x12, 0x13].map(|len| (BASE + 0x123, len));
        assert_eq!(segments, expected);
    }
}

/// A queue stops and starts after each request; a split one has its used index in memory.
#[test]
fn a_base_survives_a_stop_at_every_place_of_both_laps() {
    for (features, size) in [(PACKED, 1), (PACKED, 3), (PACKED, 8), (EVENT_IDX, 4)] {
        let memory = TestMemory::new(0x10_0000);
        let guest_memory = memory.guest_memory();
        let mut driver = match features.packed {
            true => Ring::Packed(PackedDriverRing::new(&memory, size, features)),
            false => Ring::split_at(&memory, size, features, 0xfffe),
        };
        let mut base = driver.base();
        for _ in 0..4 * size {
            let mut queue = Queue::new(&guest_memory, driver.layout(), features, base).unwrap();
            assert_eq!(queue.base(), base, "nothing was done");
            let id = driver.add(&[Buffer::writable(BASE, 4)]);
            driver.publish();
            let popped = queue.pop(&guest_memory, &mut Chain::new()).unwrap();
            queue.push(popped.unwrap(), 4);
            queue.publish();
            assert_eq!(driver.take_used(), [id]);
            base = queue.base();
            if features.packed {
                let position = u32::from(driver.packed().base());
                assert_eq!(base, position | position << 16);
            }
        }
    }
}

#[test]
fn a_remapped_queue_continues_in_the_new_memory() {
    for features in [EVENT_IDX, PACKED] {
        let mut both = Both::new(features);
        let added = both.add(3);
        let old = both.memory.guest_memory();
        let first = both.pop().unwrap();
        both.queue.push(first, 1);

        let new = both.memory.remap();
        assert_ne!(old.regions()[0].host, new.regions()[0].host);
        both.queue.remap(&new).unwrap();
        drop(old); // and with it the old mapping: an access there ends the test
        both.pop_and_push_all();
        assert!(both.queue.publish());
        assert_eq!(both.driver.take_used(), added);
    }
}

#[test]
fn a_queue_outlives_a_memory_map_without_it() {
    for features in [EVENT_IDX, PACKED] {
        let mut both = Both::new(features);
        let added = both.add(2);
        let first = both.pop().unwrap();
        let elsewhere = TestMemory::with_regions(&[(0, 0x1000)]);
        let error = both.queue.remap(&elsewhere.guest_memory()).unwrap_err();
        let outside = matches!(error, RingError::RingOutsideMemory { .. });
        assert!(outside, "{error}");
        both.memory.remap(); // the queue alone still holds the old mapping
        assert!(both.queue.has_available());
        both.queue.push(first, 9);
        assert!(both.queue.publish());
        assert_eq!(both.driver.take_used(), added[..1]);
    }
}

#[test]
fn the_no_interrupt_flag_is_obeyed_without_event_idx_and_ignored_with_it() {
    let mut both = Both::at_index(FLAGS, 0xfffe);
    for no_interrupt in [false, true, false, true, true, false] {
        both.driver.split().set_no_interrupt(no_interrupt);
        assert_eq!(both.complete(2), !no_interrupt);
    }
    let mut both = Both::new(EVENT_IDX);
    both.complete(1);
    both.driver.split().set_no_interrupt(true);
    both.driver.wait_for_next_used();
    assert!(both.complete(1));
}

#[test]
fn enabling_kicks_reports_chains_that_came_before() {
    for features in [FLAGS, EVENT_IDX, PACKED] {
        let mut both = Both::new(features);
        both.queue.disable_kicks();
        assert_eq!(both.pop(), None);
        both.add(1);
        assert!(both.queue.enable_kicks_and_recheck());
        both.pop_and_push_all();
        assert!(!both.queue.enable_kicks_and_recheck());
    }
}

#[test]
fn without_event_idx_the_event_words_are_not_part_of_the_rings() {
    // A guest without the feature may put its used ring right behind the available ring.
    let memory = TestMemory::new(0x1_0000);
    let driver = DriverRing::new(&memory, SIZE, FLAGS);
    let mut layout = driver.layout();
    layout.used = layout.avail + 4 + 2 * u64::from(SIZE);
    let guest_memory = memory.guest_memory();
    let mut queue = SplitRing::new(&guest_memory, layout, FLAGS, 0).unwrap();
    let behind = layout.used + 4 + 8 * u64::from(SIZE);
    memory.store_u16(behind, 0x1234);
    queue.disable_kicks();
    queue.enable_kicks_and_recheck();
    for head in 0..SIZE {
        queue.push(head, 0);
    }
    assert!(queue.publish());
    assert_eq!(memory.load_u16(behind), 0x1234);
    assert_eq!(memory.load_u16(layout.used), 0);
    assert_eq!(memory.load_u16(layout.used + 2), SIZE);
}
