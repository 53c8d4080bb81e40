//! Split and packed virtqueues, and a driver that writes anything into them at any time between two calls.
//!
//! Chains lie in guest memory, whatever their descriptors say; the driver finds used entries where the specification
//! says; nothing else of its memory changes. A ring that is broken says so, and works again after a reset.

use virtqueue::{Chain, Queue, RingFeatures};

use crate::driver::buffers;
use crate::guest::{Memory, WritableRanges};
use crate::input::Input;
use crate::observed::Ring;

const EVENTS: usize = 200;

struct Rig {
    memory: Memory,
    ring: Ring,
    chain: Chain,
    /// Packed: where the next used descriptor goes, and its wrap counter. Split: the used index.
    used: u16,
    used_wrap: bool,
}

/// A split queue.
pub fn split(bytes: &[u8]) {
    run(bytes, false);
}

/// A packed queue.
pub fn packed(bytes: &[u8]) {
    run(bytes, true);
}

fn run(bytes: &[u8], packed: bool) {
    let mut input = Input::new(bytes);
    let flags = input.byte();
    let features = RingFeatures {
        event_idx: flags & 1 != 0,
        indirect: flags & 2 != 0,
        packed,
    };
    let size = match packed {
        true => [1, 2, 3, 7, 8, 16, 31, 32][usize::from(flags >> 2) % 8],
        false => [1, 2, 4, 8, 16, 32][usize::from(flags >> 2) % 6],
    };
    let memory = Memory::new();
    let mut rig = Rig {
        ring: Ring::new(0, size, features, &memory),
        memory,
        chain: Chain::new(),
        used: 0,
        used_wrap: true,
    };
    input.events(EVENTS, |input| rig.event(input));
}

impl Rig {
    fn event(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=3 => {
                let (buffers, indirect) = (buffers(input), input.flag());
                self.ring.driver.add(&self.memory, &buffers, indirect);
            }
            4..=6 => self.ring.driver.misbehave(&self.memory, input),
            7..=9 => {
                let most = input.below(40);
                self.step(|rig| rig.pop(most));
            }
            10 | 11 => {
                let (count, from, written) = (input.below(9), input.byte(), input.byte());
                self.complete(count, from.into(), written.into());
            }
            12 => self.step(|rig| {
                rig.ring.queue.has_available();
            }),
            13 => self.step(|rig| rig.ring.queue.disable_kicks()),
            14 => self.step(|rig| {
                rig.ring.queue.enable_kicks_and_recheck();
            }),
            _ => match input.below(3) {
                0 => {
                    self.memory.map = Memory::map();
                    let remapped = self.ring.queue.remap(&self.memory.map);
                    remapped.expect("rings are where they were");
                }
                1 => self.reset(),
                _ => self.restart(),
            },
        }
    }

    /// The device does something: it writes only where it may.
    fn step(&mut self, what: impl FnOnce(&mut Self)) {
        let before = self.memory.snapshot();
        let mut allowed = WritableRanges::default();
        self.ring.driver.allow(&self.memory, &mut allowed);
        what(self);
        self.ring.chains().answered.clear();
        allowed.check(&before);
    }

    fn pop(&mut self, most: usize) {
        for _ in 0..most {
            if self.ring.is_broken
                || self.ring.chains().taken.len() > usize::from(self.ring.driver.layout.size)
            {
                return;
            }
            match self.ring.queue.pop(&self.memory.map, &mut self.chain) {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    self.ring.is_broken = true;
                }
            }
        }
    }

    /// Gives chains back, and looks for them as a driver would.
    fn complete(&mut self, count: usize, from: usize, written: u32) {
        self.step(|rig| {
            let taken = rig.ring.chains().taken.len();
            for _ in 0..count.min(taken).min(rig.ring.driver.layout.size.into()) {
                let chains = rig.ring.chains();
                let (id, writable) = &chains.taken[from % chains.taken.len()];
                let room: usize = writable.iter().map(|(_, len)| len).sum();
                let (id, written) = (*id, written.min(u32::try_from(room).expect("32 bits")));
                drop(chains);
                rig.ring.queue.push(id, written);
            }
            rig.ring.queue.publish();
        });
        let pushed = std::mem::take(&mut self.ring.chains().pushed);
        let layout = self.ring.driver.layout;
        for (id, written) in pushed {
            let word = |addr| u32::from_le_bytes(self.memory.read(addr));
            let (found_id, found_written) = match self.ring.driver.features.packed {
                true => {
                    let desc = layout.desc + 16 * u64::from(self.used);
                    let flags = self.memory.read_u16(desc + 14);
                    let wrap = if self.used_wrap { 0x8080 } else { 0 };
                    assert_eq!(flags & 0x8080, wrap, "used");
                    self.used += id.descriptors;
                    if self.used >= layout.size {
                        (self.used, self.used_wrap) = (self.used - layout.size, !self.used_wrap);
                    }
                    (self.memory.read_u16(desc + 12).into(), word(desc + 8))
                }
                false => {
                    let entry = layout.used + 4 + 8 * u64::from(self.used % layout.size);
                    self.used = self.used.wrapping_add(1);
                    (word(entry), word(entry + 4))
                }
            };
            assert_eq!((found_id, found_written), (u32::from(id.id), written));
        }
    }

    /// The driver resets the device.
    fn reset(&mut self) {
        self.ring.restart(&self.memory);
        (self.used, self.used_wrap) = (0, true);
    }

    /// The queue stops, with nothing in flight, and starts where it stood.
    fn restart(&mut self) {
        if self.ring.is_broken || !self.ring.chains().taken.is_empty() {
            return;
        }
        let base = self.ring.queue.base();
        let used = self.memory.read_u16(self.ring.driver.layout.used + 2);
        let (layout, features) = (self.ring.driver.layout, self.ring.driver.features);
        let queue = Queue::new(&self.memory.map, layout, features, base);
        self.ring.set_queue(queue.expect("it stood there"));
        if self.ring.driver.features.packed {
            // A base of 0 may be taken for that of a new queue, see `PackedRing::new`; nothing is in flight.
            let next = self.ring.queue.next_avail_counting_recovered();
            (self.used, self.used_wrap) = (next & 0x7fff, next & 0x8000 != 0);
        } else {
            self.used = used;
        }
    }
}
