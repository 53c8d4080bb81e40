//! Cost of a request in the queue: nanoseconds per pop and push, for the three descriptors of a
//! small disk request, in both formats of a ring. It prints numbers and checks none. The driver's part is not
//! counted.
//!
//! `cargo run --release -p virtqueue --example pop_push_cost`
//!
//! Instructions instead of time, for one of the lines printed:
//! `valgrind --tool=callgrind --toggle-collect='*::turn*' .../pop_push_cost 1000 LINE`

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use virtqueue::testing::{Buffer, DriverRing, PackedDriverRing, TestMemory};
use virtqueue::{Chain, GuestMemory, Queue, RingError, RingFeatures};

const QUEUE_SIZE: u16 = 256;
/// Chains that the ring has room for when each takes three descriptors.
const BATCH: u16 = 64;

/// Prints the cost of a request in each format, with and without indirect tables.
fn main() -> Result<(), RingError> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse());
    let mut number = |default| match arguments.next() {
        Some(number) => number.expect("arguments are numbers: BATCHES LINE"),
        None => default,
    };
    let (batches, only) = (number(2000), number(0));
    let mut line = 0;
    for packed in [false, true] {
        for indirect in [false, true] {
            line += 1;
            if only != 0 && only != line {
                continue;
            }
            let features = RingFeatures {
                event_idx: true,
                indirect,
                packed,
            };
            let spent = if packed {
                packed_cost(features, batches)?
            } else {
                split_cost(features, batches)?
            };
            let requests = u128::from(batches) * u128::from(BATCH);
            let ns = spent.as_nanos() / requests.max(1);
            println!("{line}: packed {packed:5}  indirect {indirect:5}  {ns} ns per request");
        }
    }
    Ok(())
}

fn request(memory: &TestMemory) -> [Buffer; 3] {
    [
        Buffer::readable(memory.alloc(16, 16), 16),
        Buffer::writable(memory.alloc(4096, 4096), 4096),
        Buffer::writable(memory.alloc(1, 1), 1),
    ]
}

/// The device's part of a batch.
#[inline(never)]
fn turn(queue: &mut Queue, memory: &GuestMemory, chain: &mut Chain) -> Result<(), RingError> {
    while let Some(id) = queue.pop(memory, chain)? {
        queue.push(id, u32::from(!black_box(&*chain).writable().is_empty()));
    }
    Ok(())
}

/// The time that the device spends on these batches in a split queue.
fn split_cost(features: RingFeatures, batches: u32) -> Result<Duration, RingError> {
    let memory = TestMemory::with_regions(&[(0, 1 << 20), (1 << 20, 1 << 20)]);
    let mut driver = DriverRing::new(&memory, QUEUE_SIZE, features);
    let mut queue = Queue::from(driver.device_queue());
    let (guest_memory, mut chain) = (memory.guest_memory(), Chain::new());
    let request = request(&memory);
    // The same chains stand in every entry of the ring; a batch only moves the index.
    let add = |_| match features.indirect {
        true => driver.add_indirect(&request),
        false => driver.add(&request),
    };
    let heads: Vec<_> = (0..BATCH).map(add).collect();
    for entry in 0..QUEUE_SIZE {
        driver.set_avail_entry(entry, heads[usize::from(entry % BATCH)]);
    }
    let (mut avail_idx, mut spent) = (0u16, Duration::ZERO);
    for _ in 0..batches {
        avail_idx = avail_idx.wrapping_add(BATCH);
        driver.set_avail_idx(avail_idx);
        let start = Instant::now();
        turn(&mut queue, &guest_memory, &mut chain)?;
        spent += start.elapsed();
        black_box(queue.publish());
    }
    Ok(spent)
}

/// The time that the device spends on these batches in a packed queue.
fn packed_cost(features: RingFeatures, batches: u32) -> Result<Duration, RingError> {
    let memory = TestMemory::with_regions(&[(0, 1 << 20), (1 << 20, 1 << 20)]);
    let mut driver = PackedDriverRing::new(&memory, QUEUE_SIZE, features);
    let mut queue = Queue::from(driver.device_queue());
    let (guest_memory, mut chain) = (memory.guest_memory(), Chain::new());
    let request = request(&memory);
    let table = driver.write_table(&request);
    let mut spent = Duration::ZERO;
    for _ in 0..batches {
        for _ in 0..BATCH {
            if features.indirect {
                driver.add_table(table, 3);
            } else {
                driver.add(&request);
            }
        }
        driver.publish();
        let start = Instant::now();
        turn(&mut queue, &guest_memory, &mut chain)?;
        spent += start.elapsed();
        black_box(queue.publish());
        driver.take_used();
    }
    Ok(spent)
}
