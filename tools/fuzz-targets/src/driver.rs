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
            let host = memory
                .map
                .host_addr_of_range(addr, len)
                .expect("rings are in memory");
            allowed.add(host.as_ptr(), usize::try_from(len).expect("short"));
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
        let flags = |buffer: &Buffer| if buffer.writable { WRITE } else { 0 };
        let size = self.layout.size;
        if buffers.is_empty() {
            return;
        }
        if !indirect && buffers.len() > usize::from(size) {
            return;
        }
        let last = buffers.len() - 1;
        if self.features.packed {
            let id = self.next;
            if indirect {
                let table = self.next_table;
                for (index, buffer) in (0u64..).zip(buffers) {
                    let bytes = Driver::descriptor(buffer.addr, buffer.len, 0, flags(buffer));
                    memory.write(table.wrapping_add(16 * index), &bytes);
                }
                let len = u32::try_from(16 * buffers.len()).expect("few");
                return self.put_packed(memory, table, len, id, INDIRECT);
            }
            for (index, buffer) in buffers.iter().enumerate() {
                let next = if index < last { NEXT } else { 0 };
                self.put_packed(memory, buffer.addr, buffer.len, id, flags(buffer) | next);
            }
            return;
        }
        let head = self.next_desc;
        if indirect {
            let table = self.next_table;
            for (index, buffer) in (0u16..).zip(buffers) {
                let next = if usize::from(index) < last { NEXT } else { 0 };
                let bytes =
                    Driver::descriptor(buffer.addr, buffer.len, flags(buffer) | next, index + 1);
                memory.write(table.wrapping_add(16 * u64::from(index)), &bytes);
            }
            let len = u32::try_from(16 * buffers.len()).expect("few");
            let bytes = Driver::descriptor(table, len, INDIRECT, 0);
            memory.write(self.layout.desc + 16 * u64::from(head), &bytes);
            self.next_desc = (head + 1) % size;
        } else {
            for (index, buffer) in buffers.iter().enumerate() {
                let place = self.next_desc;
                self.next_desc = (place + 1) % size;
                let next = if index < last { NEXT } else { 0 };
                let bytes = Driver::descriptor(
                    buffer.addr,
                    buffer.len,
                    flags(buffer) | next,
                    self.next_desc,
                );
                memory.write(self.layout.desc + 16 * u64::from(place), &bytes);
            }
        }
        let entry = self.layout.avail + 4 + 2 * u64::from(self.next % size);
        memory.write(entry, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        memory.write(self.layout.avail + 2, &self.next.to_le_bytes());
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
        let size = u64::from(self.layout.size);
        match input.below(6) {
            0 => {
                // A descriptor of anything, in the ring or in a table.
                let (addr, len) = (address(input), length(input));
                let (third, fourth) = (input.u16(), input.u16());
                let bytes = match self.features.packed {
                    true => Driver::descriptor(addr, len, u16::from(input.byte()), third),
                    false => {
                        Driver::descriptor(addr, len, third & 0x7, fourth % (self.layout.size + 1))
                    }
                };
                let table = if input.flag() {
                    self.layout.desc
                } else {
                    self.next_table
                };
                memory.write(
                    table.wrapping_add(16 * (u64::from(input.byte()) % size)),
                    &bytes,
                );
            }
            1 => {
                let bytes = u16::from(input.byte()).to_le_bytes();
                memory.write(
                    self.layout.avail + 2 * (u64::from(input.byte()) % (size + 3)),
                    &bytes,
                );
            }
            2 => {
                self.next = self.next.wrapping_add(u16::from(input.byte()));
                if self.features.packed {
                    self.next %= self.layout.size;
                    self.wrap = input.flag();
                } else {
                    memory.write(self.layout.avail + 2, &self.next.to_le_bytes());
                }
            }
            3 => self.next_table = address(input),
            4 => {
                let at = input.u16();
                memory.write(self.layout.desc + u64::from(at % 0xa00), input.bytes(4));
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
