//! Crash tests: a device is killed before any of its stores, and another one continues.
//!
//! In each case, all chains that the guest has made available and does not see as done are popped
//! again, in the order in which they were made available, and pushed once.

mod records;
mod unpop;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::InflightRegion;
use crate::error::InflightError;
use crate::store_hook::ended_after_stores;
use crate::testing::{Buffer, DriverRing, PackedDriverRing, TestMemory};
use crate::{Chain, ChainId, Queue, RingError, RingFeatures, RingLayout};

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

enum Driver {
    Split(DriverRing),
    Packed(PackedDriverRing),
}

/// The guest and the front-end's buffer: what outlives the device.
struct Outside {
    memory: TestMemory,
    driver: Driver,
    record: Arc<[AtomicU64]>,
    entries: u16,
    /// Requests that are available and not seen as done: what the driver calls them, and their number.
    waiting: VecDeque<(u16, u64)>,
    /// Buffers of requests that are done.
    free: Vec<u64>,
    next_number: u64,
}

const SPLIT: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: true,
    packed: false,
};
const PACKED: RingFeatures = RingFeatures {
    packed: true,
    ..SPLIT
};

impl Outside {
    /// A guest with a queue whose first available index is `base`, and an empty record.
    fn new(features: RingFeatures, size: u16, base: u16) -> Outside {
        let memory = TestMemory::new(1 << 20);
        let driver = if features.packed {
            let base = (base & 0x7fff, base & 0x8000 != 0);
            Driver::Packed(PackedDriverRing::with_base(&memory, size, features, base))
        } else {
            Driver::Split(DriverRing::with_base(&memory, size, features, base))
        };
        // More than the queue has: front-ends say what it could have.
        let entries = size + 2;
        let words = InflightRegion::len_bytes(features.packed, entries) / 8;
        let free = (0..size).map(|_| memory.alloc(8, 8)).collect();
        Outside {
            memory,
            driver,
            record: (0..words).map(|_| AtomicU64::new(0)).collect(),
            entries,
            waiting: VecDeque::new(),
            free,
            next_number: 0,
        }
    }

    fn features(&self) -> RingFeatures {
        match &self.driver {
            Driver::Split(ring) => ring.features(),
            Driver::Packed(ring) => ring.features(),
        }
    }

    fn layout(&self) -> RingLayout {
        match &self.driver {
            Driver::Split(ring) => ring.layout(),
            Driver::Packed(ring) => ring.layout(),
        }
    }

    fn region(&self) -> InflightRegion {
        let host = NonNull::from(&self.record[0]).cast();
        // SAFETY: as many words as a region of this form has, all of them atomics, kept by the owner.
        unsafe {
            let packed = self.features().packed;
            InflightRegion::new(host, packed, self.entries, Arc::new(self.record.clone()))
        }
    }

    /// `base` is what a front-end says.
    fn device(&self, base: u16) -> Result<Device, RingError> {
        let memory = self.memory.guest_memory();
        let (layout, features) = (self.layout(), self.features());
        let queue = Queue::with_recorder(&memory, layout, features, base.into(), self.region())?;
        Ok(Device {
            queue,
            held: Vec::new(),
            chain: Chain::new(),
        })
    }

    /// Makes a request available, if there is room, as `shape` says.
    fn add_request(&mut self, shape: u64) {
        let room = match &self.driver {
            Driver::Split(ring) => ring.free_descriptors(),
            Driver::Packed(ring) => ring.free_descriptors().into(),
        };
        let buffers = usize::try_from(1 + shape % 3).unwrap();
        let direct = shape < 3;
        if room < if direct { buffers } else { 1 } || self.free.is_empty() {
            return;
        }
        let addr = self.free.pop().unwrap();
        self.memory.write(addr, &self.next_number.to_le_bytes());
        let all = [
            Buffer::readable(addr, 8),
            Buffer::writable(addr, 1),
            Buffer::writable(addr, 2),
        ];
        let buffers = &all[..buffers];
        let name = match &mut self.driver {
            Driver::Split(ring) if direct => ring.add(buffers),
            Driver::Split(ring) => ring.add_indirect(buffers),
            Driver::Packed(ring) if direct => ring.add(buffers),
            Driver::Packed(ring) => ring.add_indirect(buffers),
        };
        match &mut self.driver {
            Driver::Split(ring) => ring.publish(),
            Driver::Packed(ring) => ring.publish(),
        };
        self.waiting.push_back((name, self.next_number));
        self.next_number += 1;
    }

    /// Sees what is done. Panics if it was not asked for.
    fn take_used_entries(&mut self) {
        let done = match &mut self.driver {
            Driver::Split(ring) => ring.take_used(),
            Driver::Packed(ring) => ring.take_used(),
        };
        for (name, written) in done {
            let known = self
                .waiting
                .iter()
                .position(|(waiting, _)| *waiting == name);
            let (_, number) = self.waiting.remove(known.expect("one that waits")).unwrap();
            assert_eq!(
                u64::from(written),
                number,
                "the used entry is that of the request"
            );
            self.free.push(self.memory.alloc(8, 8));
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.waiting.iter().map(|(_, number)| *number).collect()
    }
}

struct Device {
    queue: Queue,
    held: Vec<(ChainId, u64)>,
    chain: Chain,
}

impl Device {
    /// Pops a chain, and returns the number of its request.
    fn pop(&mut self, outside: &Outside) -> Option<u64> {
        let memory = outside.memory.guest_memory();
        let id = self
            .queue
            .pop(&memory, &mut self.chain)
            .expect("a driver that keeps to the rules")?;
        let bytes = outside.memory.gather(self.chain.readable());
        let number = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        self.held.push((id, number));
        Some(number)
    }

    fn push(&mut self, which: u64) {
        if !self.held.is_empty() {
            let (id, number) = self
                .held
                .swap_remove(usize::try_from(which).unwrap() % self.held.len());
            self.queue.push(id, u32::try_from(number).unwrap());
        }
    }
}

/// What guest and device do.
fn run(outside: &mut Outside, device: &mut Device, random: &mut Random, steps: u32) {
    for _ in 0..steps {
        match random.below(8) {
            0..3 => outside.add_request(random.below(6)),
            3..5 => drop(device.pop(outside)),
            5..6 => device.push(random.below(64)),
            6 => drop(device.queue.publish()),
            _ => outside.take_used_entries(),
        }
    }
}

/// The next device finds what it has to, and can do it.
fn recovered(outside: &mut Outside, random: &mut Random) -> Device {
    // What the front-end says of a device that could not say it: for a split queue the used index, for a
    // packed one an old base.
    let base = match &outside.driver {
        Driver::Split(ring) => ring.used_idx(),
        Driver::Packed(_) => 0x8000,
    };
    let mut device = loop {
        // The guest goes on meanwhile, with what it sees.
        for _ in 0..random.below(5) {
            outside.take_used_entries();
            outside.add_request(random.below(6));
        }
        // The next device may be killed at its start as well.
        let stores = u32::try_from(random.below(200)).unwrap();
        if let Some(device) = ended_after_stores(stores, || outside.device(base)) {
            break device.expect("a record that can be used");
        }
    };
    outside.take_used_entries();
    let mut again = Vec::new();
    while let Some(number) = device.pop(outside) {
        again.push(number);
    }
    assert_eq!(again, outside.numbers(), "all of it, in its order");
    device
}

/// Gives everything back, as a device that is not killed.
fn finish(outside: &mut Outside, device: &mut Device, random: &mut Random) {
    while device.pop(outside).is_some() {}
    while !device.held.is_empty() {
        device.push(random.below(64));
        if random.below(3) == 0 {
            device.queue.publish();
            outside.take_used_entries();
        }
    }
    device.queue.publish();
    outside.take_used_entries();
    assert!(outside.waiting.is_empty(), "each was pushed");
}

/// Kills the device before each of its stores in turn.
fn killed_everywhere(features: RingFeatures, size: u16, base: u16, seed: u64) {
    for stores in 0.. {
        let mut random = Random(seed);
        let mut outside = Outside::new(features, size, base);
        let ended = ended_after_stores(stores, || {
            let mut device = outside.device(base).unwrap();
            run(&mut outside, &mut device, &mut random, 300);
        });
        if ended.is_some() {
            assert!(stores > 100, "not much was stored: {stores}");
            return;
        }
        let mut device = if outside.region().has_record() {
            recovered(&mut outside, &mut random)
        } else {
            // It had not begun: the front-end's base is right.
            outside.device(base).unwrap()
        };
        finish(&mut outside, &mut device, &mut random);
    }
}

/// Kills device after device, each somewhere.
fn killed_again_and_again(features: RingFeatures, size: u16, base: u16, seed: u64) {
    let mut random = Random(seed);
    let mut outside = Outside::new(features, size, base);
    let mut device = outside.device(base).unwrap();
    for _ in 0..200 {
        let stores = u32::try_from(random.below(300)).unwrap();
        let ended = ended_after_stores(stores, || {
            run(&mut outside, &mut device, &mut random, 100);
        });
        if ended.is_none() {
            device = recovered(&mut outside, &mut random);
        }
    }
    finish(&mut outside, &mut device, &mut random);
}

#[test]
fn a_split_queue_loses_and_repeats_nothing_wherever_its_device_is_killed() {
    for (seed, (size, base)) in [(4, 0), (8, 65_533), (16, 65_520)].into_iter().enumerate() {
        killed_everywhere(SPLIT, size, base, seed as u64);
        killed_again_and_again(SPLIT, size, base, seed as u64);
    }
}

#[test]
fn a_packed_queue_loses_and_repeats_nothing_wherever_its_device_is_killed() {
    // Sizes that are no powers of two, and both laps.
    for (seed, (size, base)) in [(4, 0x8000), (5, 0x8003), (7, 0x0006), (13, 0x0001)]
        .into_iter()
        .enumerate()
    {
        killed_everywhere(PACKED, size, base, seed as u64);
        killed_again_and_again(PACKED, size, base, seed as u64);
    }
}
