//! A guest's driver of one virtqueue, which keeps the rules, or does not, as an input says.

use virtqueue::{Queue, RingFeatures, RingLayout};

use crate::guest::{Memory, WritableRanges, address, length};
use crate::input::Input;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A buffer of a request.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub addr: u64,
    pub len: u32,
    pub writable: bool,
}

impl Buffer {
    fn flags(self, is_last: bool) -> u16 {
        let next = if is_last { 0 } else { NEXT };
        next | if self.writable { WRITE } else { 0 }
    }

    pub fn readable(addr: u64, len: u32) -> Self {
        let writable = false;
        Buffer {
            addr,
            len,
            writable,
        }
    }

    pub fn writable(addr: u64, len: u32) -> Self {
        let writable = true;
        Buffer {
            addr,
            len,
            writable,
        }
    }
}

/// The driver's side of one queue.
pub struct Driver {
    pub layout: RingLayout,
    pub features: RingFeatures,
    /// Split: the next available index. Packed: the next descriptor.
    next: u16,
    wrap: bool,
    /// Split: the next descriptor.
    next_desc: u16,
    /// Where the next indirect table goes.
    next_table: u64,
}

impl Driver {
    /// The rings of queue number `index` lie at the beginning of memory, one queue's behind the other's.
    pub fn new(index: u64, size: u16, features: RingFeatures) -> Self {
        let desc = 0x1_0000 + index * 0xa00;
        Driver {
            layout: RingLayout {
                size,
                desc,
                avail: desc + 0x400,
                used: desc + 0x500,
            },
            features,
            next: 0,
            wrap: true,
            next_desc: 0,
            next_table: 0x1_2000 + index * 0x400,
        }
    }

    /// The device's side, as after a reset.
    pub fn start(&mut self, memory: &Memory) -> Queue {
        let len = 0xa00;
        memory.write(self.layout.desc, &vec![0; len]);
        (self.next, self.wrap, self.next_desc) = (0, true, 0);
        let base = if self.features.packed { 0x8000 } else { 0 };
        Queue::new(&memory.map, self.layout, self.features, base).expect("a sound layout")
    }

    /// What the device itself writes of the rings.
    pub fn allow(&self, memory: &Memory, allowed: &mut WritableRanges) {
        let size = u64::from(self.layout.size);
        let parts = match self.features.packed {
            true => [(self.layout.desc, 16 * size), (self.layout.used, 4)],
            false => [(self.layout.used, 6 + 8 * size), (self.layout.used, 0)],
        };
        for (addr, len) in parts {
            let host = memory.map.host_addr_of_range(addr, len);
            let len = usize::try_from(len).expect("short");
            allowed.add(host.expect("rings are in memory").as_ptr(), len);
        }
    }

    fn descriptor(addr: u64, len: u32, third: u16, fourth: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&third.to_le_bytes());
        bytes[14..].copy_from_slice(&fourth.to_le_bytes());
        bytes
    }

    /// Makes a request available, as the rules are; not whether there is room for it.
    pub fn add(&mut self, memory: &Memory, buffers: &[Buffer], indirect: bool) {
        let size = self.layout.size;
        if buffers.is_empty() || !indirect && buffers.len() > usize::from(size) {
            return;
        }
        let packed = self.features.packed;
        // Packed: the chain's id. Split: its first descriptor.
        let head = if packed { self.next } else { self.next_desc };
        if indirect {
            let table = self.next_table;
            for (index, buffer) in (0u16..).zip(buffers) {
                let is_last = usize::from(index) + 1 == buffers.len();
                let bytes = match packed {
                    true => Driver::descriptor(buffer.addr, buffer.len, 0, buffer.flags(true)),
                    false => {
                        let flags = buffer.flags(is_last);
                        Driver::descriptor(buffer.addr, buffer.len, flags, index + 1)
                    }
                };
                memory.write(table.wrapping_add(16 * u64::from(index)), &bytes);
            }
            let len = u32::try_from(16 * buffers.len()).expect("few");
            self.put(memory, table, len, head, INDIRECT);
        } else {
            for (index, buffer) in (1..).zip(buffers) {
                let flags = buffer.flags(index == buffers.len());
                self.put(memory, buffer.addr, buffer.len, head, flags);
            }
        }
        if !packed {
            let entry = self.layout.avail + 4 + 2 * u64::from(self.next % size);
            memory.write(entry, &head.to_le_bytes());
            self.next = self.next.wrapping_add(1);
            memory.write(self.layout.avail + 2, &self.next.to_le_bytes());
        }
    }

    /// Writes the next descriptor of the ring; in a packed one it is available.
    fn put(&mut self, memory: &Memory, addr: u64, len: u32, id: u16, flags: u16) {
        if self.features.packed {
            return self.put_packed(memory, addr, len, id, flags);
        }
        let place = self.next_desc;
        self.next_desc = (place + 1) % self.layout.size;
        let next = if flags == INDIRECT { 0 } else { self.next_desc };
        let bytes = Driver::descriptor(addr, len, flags, next);
        memory.write(self.layout.desc + 16 * u64::from(place), &bytes);
    }

    fn put_packed(&mut self, memory: &Memory, addr: u64, len: u32, id: u16, flags: u16) {
        let flags = flags | if self.wrap { AVAIL } else { USED };
        let bytes = Driver::descriptor(addr, len, id, flags);
        memory.write(self.layout.desc + 16 * u64::from(self.next), &bytes);
        self.next += 1;
        if self.next == self.layout.size {
            (self.next, self.wrap) = (0, !self.wrap);
        }
    }

    /// A driver that keeps no rule: writes to rings, tables and buffers.
    pub fn misbehave(&mut self, memory: &Memory, input: &mut Input) {
        let RingLayout { desc, avail, .. } = self.layout;
        let size = u64::from(self.layout.size);
        match input.below(6) {
            0 => {
                // A descriptor of anything, in the ring or in a table.
                let (addr, len) = (address(input), length(input));
                let (third, fourth) = (input.u16(), input.u16());
                let (third, fourth) = match self.features.packed {
                    true => (u16::from(input.byte()), third),
                    false => (third & 0x7, fourth % (self.layout.size + 1)),
                };
                let table = if input.flag() { desc } else { self.next_table };
                let at = table.wrapping_add(16 * (u64::from(input.byte()) % size));
                memory.write(at, &Driver::descriptor(addr, len, third, fourth));
            }
            1 => {
                let bytes = u16::from(input.byte()).to_le_bytes();
                let at = u64::from(input.byte()) % (size + 3);
                memory.write(avail + 2 * at, &bytes);
            }
            2 => {
                self.next = self.next.wrapping_add(u16::from(input.byte()));
                if self.features.packed {
                    self.next %= self.layout.size;
                    self.wrap = input.flag();
                } else {
                    memory.write(avail + 2, &self.next.to_le_bytes());
                }
            }
            3 => self.next_table = address(input),
            4 => {
                let at = input.u16();
                memory.write(desc + u64::from(at % 0xa00), input.bytes(4));
            }
            _ => {
                let addr = address(input);
                memory.write(addr, input.bytes(32));
            }
        }
    }
}

/// Buffers of a chain of any form.
pub fn buffers(input: &mut Input) -> Vec<Buffer> {
    let readable = input.below(5);
    let count = readable + input.below(5);
    (0..count)
        .map(|index| Buffer {
            addr: address(input),
            len: length(input),
            writable: index >= readable,
        })
        .collect()
}
