//! The data path allocates nothing: counted by an allocator of our own.

use virtqueue::testing::{Buffer, DriverRing, PackedDriverRing, TestMemory};
use virtqueue::{Chain, MAX_SEGMENTS, RingFeatures};

#[global_allocator]
static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;

#[test]
fn popping_and_pushing_allocate_nothing() {
    let features = RingFeatures {
        event_idx: true,
        indirect: true,
        packed: false,
    };
    let memory = TestMemory::with_regions(&[(0, 0x10_0000), (0x10_0000, 0x10_0000)]);
    let mut driver = DriverRing::new(&memory, 8, features);
    let mut queue = driver.device_queue();
    let guest_memory = memory.guest_memory();
    let mut chain = Chain::new();

    // As many segments as a chain can have: each of the buffers lies across the regions.
    let across = [Buffer::readable(0xf_ffff, 2); MAX_SEGMENTS / 2];
    let header = memory.alloc(16, 16);
    let mut broken = across.to_vec();
    broken.push(Buffer::readable(header, 1));
    for round in 0..3 {
        driver.add_indirect(&across);
        driver.add(&[
            Buffer::readable(header, 16),
            Buffer::writable(0xf_0000, 0x1_0000),
        ]);
        if round == 2 {
            driver.add_indirect(&broken);
        }
        driver.publish();

        let before = test_support::allocations::of_this_thread();
        queue.disable_kicks();
        let mut popped = 0;
        let end = loop {
            match queue.pop(&guest_memory, &mut chain) {
                Ok(Some(head)) => queue.push(head, 0),
                end => break end,
            }
            popped += 1;
        };
        queue.publish();
        queue.enable_kicks_and_recheck();
        let allocations = test_support::allocations::of_this_thread() - before;

        assert_eq!(popped, 2);
        assert_eq!(
            end.is_err(),
            round == 2,
            "the last round ends in an error, which is free too"
        );
        assert_eq!(allocations, 0);
        driver.take_used();
    }
    let before = test_support::allocations::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(
        test_support::allocations::of_this_thread(),
        before + 1,
        "the count counts"
    );
}

#[test]
fn a_packed_queue_allocates_nothing_either() {
    let features = RingFeatures {
        event_idx: true,
        indirect: true,
        packed: true,
    };
    let memory = TestMemory::with_regions(&[(0, 0x10_0000), (0x10_0000, 0x10_0000)]);
    let mut driver = PackedDriverRing::new(&memory, 8, features);
    let mut queue = driver.device_queue();
    let guest_memory = memory.guest_memory();
    let mut chain = Chain::new();
    let across = [Buffer::readable(0xf_ffff, 2); MAX_SEGMENTS / 2];
    let too_many = vec![Buffer::readable(0xf_ffff, 2); MAX_SEGMENTS / 2 + 1];
    for round in 0..10 {
        driver.add_indirect(&across);
        driver.add(&across[..5]);
        if round == 9 {
            driver.add_indirect(&too_many);
        }
        driver.publish();
        let before = test_support::allocations::of_this_thread();
        queue.disable_kicks();
        let mut popped = 0;
        let end = loop {
            match queue.pop(&guest_memory, &mut chain) {
                Ok(Some(chain)) => queue.push(chain, 0),
                end => break end,
            }
            popped += 1;
        };
        queue.publish();
        queue.enable_kicks_and_recheck();
        let allocations = test_support::allocations::of_this_thread() - before;
        assert_eq!((popped, end.is_err()), (2, round == 9));
        assert_eq!(allocations, 0);
        driver.take_used();
    }
}
