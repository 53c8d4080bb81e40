//! The data path allocates nothing: counted by an allocator of our own.

use test_support::allocations;
use test_support::vhost_user::ring::Ring;
use virtqueue::testing::{Buffer, TestMemory};
use virtqueue::{Chain, MAX_SEGMENTS, Queue, RingFeatures};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Also for an error, in the last round.
#[test]
fn popping_and_pushing_allocate_nothing() {
    const ROUNDS: u32 = 10;
    let before = allocations::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations::of_this_thread(), before + 1, "it counts");
    for packed in [false, true] {
        let features = RingFeatures {
            event_idx: true,
            indirect: true,
            packed,
        };
        let memory = TestMemory::with_regions(&[(0, 0x10_0000), (0x10_0000, 0x10_0000)]);
        let mut driver = Ring::new(&memory, 8, features);
        let (guest_memory, layout) = (memory.guest_memory(), driver.layout());
        let mut queue = Queue::new(&guest_memory, layout, features, driver.base()).unwrap();
        let mut chain = Chain::new();
        // As many segments as a chain can have: each of the buffers lies across the regions.
        let too_many = [Buffer::readable(0xf_ffff, 2); MAX_SEGMENTS / 2 + 1];
        let across = &too_many[1..];
        for round in 1..=ROUNDS {
            driver.add_indirect(across);
            driver.add(&across[..5]);
            if round == ROUNDS {
                driver.add_indirect(&too_many);
            }
            driver.publish();

            let before = allocations::of_this_thread();
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
            let allocations = allocations::of_this_thread() - before;

            assert_eq!((popped, end.is_err()), (2, round == ROUNDS));
            assert_eq!(allocations, 0, "packed: {packed}");
            driver.take_used();
        }
    }
}
