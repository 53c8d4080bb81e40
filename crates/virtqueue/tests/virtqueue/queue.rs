//! A well-behaved driver and the queue: what is popped, what the driver gets back, and which side has to be
//! notified.

use libc::iovec;
use virtqueue::testing::RawDescriptor;
use virtqueue::testing::{Buffer, DESC_F_INDIRECT, DESC_F_WRITE, DriverRing, TestMemory};
use virtqueue::{Chain, RingError, RingFeatures, SplitRing};

const SIZE: u16 = 8;
const BASE: u64 = 0x10_0000;
const FLAGS: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: false,
};
const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: true,
    packed: false,
};

/// Both sides of a queue.
struct Both {
    memory: TestMemory,
    driver: DriverRing,
    queue: SplitRing,
    chain: Chain,
    buffer: u64,
}

impl Both {
    fn new(features: RingFeatures, base: u16) -> Both {
        Both::in_regions(&[(BASE, 0x10_0000)], features, base)
    }

    /// Driver and device of a queue in these regions.
    fn in_regions(regions: &[(u64, u64)], features: RingFeatures, base: u16) -> Both {
        let memory = TestMemory::with_regions(regions);
        let driver = DriverRing::with_base(&memory, SIZE, features, base);
        let queue = driver.device_queue();
        let buffer = memory.alloc(0x1000, 0x1000);
        Both {
            memory,
            driver,
            queue,
            chain: Chain::new(),
            buffer,
        }
    }

    /// Adds `count` small requests, without showing them.
    fn add(&mut self, count: u16) -> Vec<u16> {
        let buffer = Buffer::writable(self.buffer, 1);
        (0..count).map(|_| self.driver.add(&[buffer])).collect()
    }

    fn pop(&mut self) -> Option<u16> {
        self.queue
            .pop(&self.memory.guest_memory(), &mut self.chain)
            .unwrap()
    }

    fn pop_all(&mut self) -> Vec<u16> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    /// The segments as the guest knows them.
    fn guest_segments(&self, segments: &[iovec]) -> Vec<(u64, usize)> {
        segments
            .iter()
            .map(|s| (self.memory.guest_addr_of(s), s.iov_len))
            .collect()
    }

    /// Adds and pops `count` requests, pushes them, and publishes: is the guest to be signalled?
    fn complete(&mut self, count: u16) -> bool {
        self.add(count);
        self.driver.publish();
        for head in self.pop_all() {
            self.queue.push(head, 0);
        }
        let signal = self.queue.publish();
        assert_eq!(self.driver.take_used().len(), usize::from(count));
        signal
    }
}

#[test]
fn an_empty_ring_has_nothing() {
    for base in [0, 7, 0xffff] {
        let mut both = Both::new(EVENT_IDX, base);
        assert!(!both.queue.has_available());
        assert_eq!(both.pop(), None);
        assert_eq!(both.queue.next_avail(), base);
        assert_eq!(both.queue.size(), SIZE);
    }
}

#[test]
fn chains_come_in_the_order_they_were_made_available_across_the_wrap() {
    for base in [0, 0xfff0, 0xffff] {
        let mut both = Both::new(EVENT_IDX, base);
        for round in 0..40 {
            let added = both.add(1 + round % SIZE);
            assert!(!both.queue.has_available(), "not shown yet");
            both.driver.publish();
            assert!(both.queue.has_available());
            assert_eq!(both.pop_all(), added);
            assert!(!both.queue.has_available());
            assert_eq!(both.queue.next_avail(), both.driver.avail_idx());
            // Back in another order, each with its own length.
            let used: Vec<_> = added
                .iter()
                .rev()
                .map(|&head| (head, u32::from(head) + 7))
                .collect();
            for &(head, written_bytes) in &used {
                both.queue.push(head, written_bytes);
            }
            assert_eq!(both.driver.take_used(), [], "not published yet");
            both.queue.publish();
            assert_eq!(both.driver.take_used(), used);
        }
    }
}

#[test]
fn a_queue_of_one_entry_works() {
    let memory = TestMemory::new(0x1_0000);
    let mut driver = DriverRing::with_base(&memory, 1, EVENT_IDX, 0xffff);
    let mut queue = driver.device_queue();
    let buffer = memory.alloc(16, 16);
    let mut chain = Chain::new();
    for _ in 0..3 {
        assert_eq!(driver.add(&[Buffer::readable(buffer, 16)]), 0);
        driver.publish();
        assert_eq!(queue.pop(&memory.guest_memory(), &mut chain), Ok(Some(0)));
        queue.push(0, 5);
        queue.publish();
        assert_eq!(driver.take_used(), [(0, 5)]);
    }
}

#[test]
fn segments_are_readable_ones_first_with_their_lengths() {
    let mut both = Both::new(FLAGS, 0);
    let at = both.buffer;
    let buffers = [
        Buffer::readable(at, 16),
        Buffer::readable(at + 0x100, 1),
        Buffer::writable(at + 0x200, 512),
        Buffer::writable(at + 0x400, 1),
    ];
    let direct = both.driver.add(&buffers);
    let indirect = both.driver.add_indirect(&buffers);
    let mixed = both.driver.add_mixed(&buffers[..1], &buffers[1..]);
    both.driver.publish();
    for head in [direct, indirect, mixed] {
        assert_eq!(both.pop(), Some(head));
        let chain = &both.chain;
        assert_eq!(
            both.guest_segments(chain.readable()),
            [(at, 16), (at + 0x100, 1)]
        );
        assert_eq!(
            both.guest_segments(chain.writable()),
            [(at + 0x200, 512), (at + 0x400, 1)]
        );
        assert_eq!((chain.readable_len(), chain.writable_len()), (17, 513));
    }
}

#[test]
fn bytes_go_both_ways() {
    let mut both = Both::new(FLAGS, 0);
    both.memory.write(both.buffer, b"question");
    let head = both.driver.add(&[
        Buffer::readable(both.buffer, 8),
        Buffer::writable(both.buffer + 0x100, 3),
        Buffer::writable(both.buffer + 0x200, 5),
    ]);
    both.driver.publish();
    assert_eq!(both.pop(), Some(head));
    assert_eq!(both.memory.gather(both.chain.readable()), b"question");
    assert_eq!(both.memory.scatter(both.chain.writable(), b"answer"), 6);
    assert_eq!(both.memory.read(both.buffer + 0x100, 3), b"ans");
    assert_eq!(both.memory.read(both.buffer + 0x200, 5), b"wer\0\0");
    // A segment can be cut in place.
    both.chain.readable_mut()[0].iov_len = 4;
    both.chain.writable_mut()[1].iov_len = 2;
    assert_eq!(both.memory.gather(both.chain.readable()), b"ques");
    assert_eq!(both.memory.gather(both.chain.writable()), b"answe");
}

#[test]
fn a_buffer_across_adjacent_regions_becomes_a_segment_in_each() {
    let regions = [
        (BASE, 0x1_0000),
        (BASE + 0x1_0000, 0x1000),
        (BASE + 0x1_1000, 0x1_0000),
    ];
    let mut both = Both::in_regions(&regions, FLAGS, 0);
    let border = BASE + 0x1_0000;
    let buffers = [
        Buffer::readable(border - 2, 4),
        Buffer::writable(border - 0x10, 0x1020),
    ];
    both.memory.write(border - 2, b"abcd");
    both.driver.add(&buffers);
    both.driver.add_indirect(&buffers);
    both.driver.publish();
    for _ in 0..2 {
        both.pop().unwrap();
        assert_eq!(
            both.guest_segments(both.chain.readable()),
            [(border - 2, 2), (border, 2)]
        );
        assert_eq!(
            both.guest_segments(both.chain.writable()),
            [
                (border - 0x10, 0x10),
                (border, 0x1000),
                (border + 0x1000, 0x10)
            ]
        );
        assert_eq!(both.memory.gather(both.chain.readable()), b"abcd");
        assert_eq!(
            (both.chain.readable_len(), both.chain.writable_len()),
            (4, 0x1020)
        );
    }
}

#[test]
fn an_indirect_table_may_lie_across_adjacent_regions() {
    let border = BASE + 0x1_0000;
    let mut both = Both::in_regions(&[(BASE, 0x1_0000), (border, 0x1000)], FLAGS, 0);
    let table = border - 32;
    let len = |index: u16| 0x10 + u32::from(index);
    for index in 0..4 {
        let descriptor = RawDescriptor {
            addr: both.buffer,
            len: len(index),
            flags: u16::from(index != 3),
            next: index + 1,
        };
        both.driver.write_descriptor_in(table, index, descriptor);
    }
    let reference = RawDescriptor {
        addr: table,
        len: 64,
        flags: DESC_F_INDIRECT,
        next: 0,
    };
    both.driver.write_descriptor(0, reference);
    both.driver.make_available(0);
    assert_eq!(both.pop(), Some(0));
    let lens: Vec<_> = both.chain.readable().iter().map(|s| s.iov_len).collect();
    assert_eq!(lens, [0x10, 0x11, 0x12, 0x13]);
}

#[test]
fn an_indirect_table_may_be_at_any_address_and_its_write_flag_means_nothing() {
    let mut both = Both::new(FLAGS, 0);
    let table = both.memory.alloc(64, 16) + 3;
    let descriptor = RawDescriptor {
        addr: both.buffer + 0x123,
        len: 0x4567,
        flags: 0,
        next: 0,
    };
    both.driver.write_descriptor_in(table, 0, descriptor);
    let flags = DESC_F_INDIRECT | DESC_F_WRITE;
    both.driver.write_descriptor(
        0,
        RawDescriptor {
            addr: table,
            len: 16,
            flags,
            next: 0,
        },
    );
    both.driver.make_available(0);
    assert_eq!(both.pop(), Some(0));
    assert_eq!(
        both.guest_segments(both.chain.readable()),
        [(both.buffer + 0x123, 0x4567)]
    );
}

#[test]
fn only_chains_that_were_popped_last_can_be_returned() {
    for base in [0, 0xfffe] {
        let mut both = Both::new(EVENT_IDX, base);
        let added = both.add(4);
        both.driver.publish();
        assert_eq!(both.pop_all(), added);
        let others = [
            vec![added[2]],
            vec![added[0], added[3]],
            vec![added[3], added[3]],
            [&added[..], &added[..]].concat().repeat(usize::from(SIZE)),
        ];
        for others in others {
            assert_eq!(both.queue.try_unpop_chains(&others), None, "{others:?}");
            assert_eq!(both.queue.next_avail(), base.wrapping_add(4));
        }
        // In whatever order they failed.
        let unpopped = both.queue.try_unpop_chains(&[added[3], added[1], added[2]]);
        assert_eq!(unpopped.as_deref(), Some(&added[1..]));
        assert_eq!(both.queue.next_avail(), base.wrapping_add(1));
        assert_eq!(both.pop_all(), added[1..]);
    }
}

#[test]
fn a_restarted_queue_continues_at_the_guests_position() {
    let mut both = Both::new(EVENT_IDX, 0xfffe);
    let added = both.add(4);
    both.driver.publish();
    for _ in 0..2 {
        let head = both.pop().unwrap();
        both.queue.push(head, 0);
    }
    both.queue.publish();
    // The process is replaced: it gets the available index, and reads the used index from memory.
    let layout = both.driver.layout();
    let base = both.queue.next_avail();
    let memory = both.memory.guest_memory();
    both.queue = SplitRing::new(&memory, layout, EVENT_IDX, base).unwrap();
    for head in both.pop_all() {
        both.queue.push(head, 1);
    }
    both.queue.publish();
    let used = both.driver.take_used();
    assert_eq!(
        used,
        [(added[0], 0), (added[1], 0), (added[2], 1), (added[3], 1)]
    );
}

#[test]
fn a_remapped_queue_continues_in_the_new_memory() {
    let mut both = Both::new(EVENT_IDX, 0xffff);
    let added = both.add(3);
    both.driver.publish();
    let old = both.memory.guest_memory();
    assert_eq!(both.pop(), Some(added[0]));
    both.queue.push(added[0], 1);

    let new = both.memory.remap();
    assert_ne!(old.regions()[0].host, new.regions()[0].host);
    both.queue.remap(&new).unwrap();
    drop(old); // and with it the old mapping: an access there ends the test
    assert_eq!(both.pop_all(), added[1..]);
    both.queue.push(added[1], 2);
    both.queue.push(added[2], 3);
    assert!(both.queue.publish());
    assert_eq!(
        both.driver.take_used(),
        [(added[0], 1), (added[1], 2), (added[2], 3)]
    );
}

#[test]
fn a_queue_outlives_a_memory_map_without_it() {
    let mut both = Both::new(EVENT_IDX, 0);
    let added = both.add(1);
    both.driver.publish();
    let elsewhere = TestMemory::with_regions(&[(0, 0x1000)]);
    let error = both.queue.remap(&elsewhere.guest_memory()).unwrap_err();
    assert!(
        matches!(error, RingError::RingOutsideMemory { .. }),
        "{error}"
    );
    both.memory.remap(); // the queue alone still holds the old mapping
    assert!(both.queue.has_available());
    both.queue.push(added[0], 9);
    assert!(both.queue.publish());
    assert_eq!(both.driver.take_used(), [(added[0], 9)]);
}

#[test]
fn publishing_nothing_does_not_signal() {
    for features in [FLAGS, EVENT_IDX] {
        let mut both = Both::new(features, 0);
        assert!(!both.queue.publish());
        assert!(both.complete(1));
        assert!(!both.queue.publish());
    }
}

#[test]
fn the_no_interrupt_flag_is_obeyed() {
    let mut both = Both::new(FLAGS, 0xfffe);
    for no_interrupt in [false, true, false, true, true, false] {
        both.driver.set_no_interrupt(no_interrupt);
        assert_eq!(both.complete(2), !no_interrupt);
    }
}

#[test]
fn event_idx_ignores_the_no_interrupt_flag() {
    let mut both = Both::new(EVENT_IDX, 0);
    both.complete(1);
    both.driver.set_no_interrupt(true);
    both.driver.wait_for_next_used();
    assert!(both.complete(1));
}

#[test]
fn the_first_batch_after_a_start_is_signalled_wherever_used_event_is() {
    for used_event in [0, 1, 0x7fff, 0xffff] {
        let mut both = Both::new(EVENT_IDX, 0);
        both.driver.set_used_event(used_event);
        assert!(both.complete(1));
    }
}

#[test]
fn event_idx_signals_when_the_batch_holds_the_event() {
    // Where the indices stand before the batch, so that it wraps in some of them.
    for start in [1, 2, 0x7ffe, 0x8000, 0xfffa, 0xfffc, 0xffff] {
        for batch in 1..=SIZE {
            let before = start - 1; // one request first: the first is always signalled
            // From well before the batch to well behind it.
            for distance in -4..12 {
                let mut both = Both::new(EVENT_IDX, before);
                assert!(both.complete(1));
                both.driver
                    .set_used_event(start.wrapping_add_signed(distance));
                let inside = (0..i16::try_from(batch).unwrap()).contains(&distance);
                assert_eq!(
                    both.complete(batch),
                    inside,
                    "used index {start:#x}, batch of {batch}, event at distance {distance}"
                );
            }
        }
    }
}

#[test]
fn a_driver_that_waits_is_signalled_once_per_wait() {
    let mut both = Both::new(EVENT_IDX, 0xfffc);
    both.complete(1);
    for _ in 0..10 {
        assert!(!both.driver.wait_for_next_used());
        assert!(both.complete(3));
        assert!(
            !both.complete(3),
            "it does not wait: it knows of the ring already"
        );
    }
}

#[test]
fn kicks_are_switched_by_flag_without_event_idx() {
    let mut both = Both::new(FLAGS, 0xffff);
    both.add(1);
    assert!(
        both.driver.publish(),
        "kicks are enabled until they are disabled"
    );
    both.queue.disable_kicks();
    both.add(1);
    assert!(!both.driver.publish());
    assert_eq!(both.driver.used_flags(), 1);
    assert_eq!(both.pop_all().len(), 2);
    assert!(!both.queue.enable_kicks_and_recheck());
    both.add(1);
    assert!(both.driver.publish());
    assert_eq!(both.driver.used_flags(), 0);
}

#[test]
fn kicks_are_switched_by_index_with_event_idx() {
    for base in [0, 0xfffe] {
        let mut both = Both::new(EVENT_IDX, base);
        assert!(!both.queue.enable_kicks_and_recheck());
        assert_eq!(both.driver.avail_event(), base);
        both.add(1);
        assert!(both.driver.publish(), "the first one after enabling");
        both.queue.disable_kicks();
        assert_eq!(
            both.driver.avail_event(),
            base,
            "nothing is written to disable"
        );
        both.add(1);
        assert!(!both.driver.publish(), "the event has been passed");
        assert_eq!(both.pop_all().len(), 2);
        assert!(!both.queue.enable_kicks_and_recheck());
        assert_eq!(both.driver.avail_event(), base.wrapping_add(2));
        both.add(3);
        assert!(both.driver.publish());
        assert_eq!(both.driver.used_flags(), 0);
    }
}

#[test]
fn enabling_kicks_reports_chains_that_came_before() {
    for features in [FLAGS, EVENT_IDX] {
        let mut both = Both::new(features, 0);
        both.queue.disable_kicks();
        assert_eq!(both.pop(), None);
        let added = both.add(1);
        both.driver.publish();
        assert!(both.queue.enable_kicks_and_recheck());
        assert_eq!(both.pop_all(), added);
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

#[test]
fn a_queue_can_move_to_another_thread() {
    let mut both = Both::new(EVENT_IDX, 0);
    let added = both.add(2);
    both.driver.publish();
    let (mut queue, mut chain) = (both.queue, both.chain);
    let memory = both.memory.guest_memory();
    let popped = std::thread::spawn(move || {
        let mut heads = Vec::new();
        while let Some(head) = queue.pop(&memory, &mut chain).unwrap() {
            queue.push(head, 1);
            heads.push(head);
        }
        assert!(queue.publish());
        heads
    });
    assert_eq!(popped.join().unwrap(), added);
    assert_eq!(both.driver.take_used().len(), 2);
}
