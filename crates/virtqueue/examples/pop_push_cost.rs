//! What a request costs in the queue: nanoseconds per pop, push, and share of a publish, for the
//! three descriptors of a small disk request. Prints; judges nothing.
//!
//! `cargo run --release -p virtqueue --example pop_push_cost`

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{Chain, RingError, RingFeatures};

const QUEUE_SIZE: u16 = 256;
/// Chains that the ring has room for when each takes three descriptors.
const BATCH: u16 = 64;
const BATCHES: u32 = 100_000;

fn main() -> Result<(), RingError> {
    for indirect in [false, true] {
        for event_idx in [false, true] {
            let ns = cost_ns(RingFeatures {
                event_idx,
                indirect,
            })?;
            println!("indirect {indirect:5}  event_idx {event_idx:5}  {ns:6.1} ns per request");
        }
    }
    Ok(())
}

fn cost_ns(features: RingFeatures) -> Result<f64, RingError> {
    let memory = TestMemory::with_regions(&[(0, 1 << 20), (1 << 20, 1 << 20)]);
    let mut driver = DriverRing::new(&memory, QUEUE_SIZE, features);
    let mut queue = driver.device_queue();
    let guest_memory = memory.guest_memory();
    let mut chain = Chain::new();

    // The same chains stand in every entry of the ring; a batch only moves the index.
    let header = memory.alloc(16, 16);
    let data = memory.alloc(4096, 4096);
    let status = memory.alloc(1, 1);
    let request = [
        Buffer::readable(header, 16),
        Buffer::writable(data, 4096),
        Buffer::writable(status, 1),
    ];
    let mut heads = Vec::new();
    for _ in 0..BATCH {
        heads.push(if features.indirect {
            driver.add_indirect(&request)
        } else {
            driver.add(&request)
        });
    }
    for entry in 0..QUEUE_SIZE {
        driver.set_avail_entry(entry, heads[usize::from(entry % BATCH)]);
    }

    let start = Instant::now();
    let mut avail_idx = 0u16;
    for _ in 0..BATCHES {
        avail_idx = avail_idx.wrapping_add(BATCH);
        driver.set_avail_idx(avail_idx);
        while let Some(head) = queue.pop(&guest_memory, &mut chain)? {
            queue.push(head, u32::from(!black_box(&chain).writable().is_empty()));
        }
        black_box(queue.publish());
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(BATCHES) / f64::from(BATCH))
}
