//! The guest's driver of one split virtqueue, for tests.
//!
//! Keeps the rules of the specification where it is asked to add buffers, and has raw writes beside
//! them for tests of broken drivers. What was written raw is not tracked.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};

use crate::layout::{RingFeatures, RingLayout};
use crate::split::SplitRing;
use crate::testing::TestMemory;

/// `VIRTQ_DESC_F_NEXT`.
pub const DESC_F_NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`.
pub const DESC_F_WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`.
pub const DESC_F_INDIRECT: u16 = 4;

/// One buffer of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// The device writes it (otherwise: reads it).
    pub writable: bool,
}

impl Buffer {
    /// A buffer that the device reads.
    pub fn readable(addr: u64, len: u32) -> Buffer {
        Buffer {
            addr,
            len,
            writable: false,
        }
    }

    /// A buffer that the device writes.
    pub fn writable(addr: u64, len: u32) -> Buffer {
        Buffer {
            addr,
            len,
            writable: true,
        }
    }

    /// The pieces of a buffer that is cut at these places.
    pub fn cut(self, places: &[u32]) -> Vec<Buffer> {
        let mut start = 0;
        let ends = places.iter().chain([&self.len]);
        ends.map(|&end| {
            let addr = self.addr + u64::from(start);
            let len = end - std::mem::replace(&mut start, end);
            Buffer { addr, len, ..self }
        })
        .collect()
    }
}

/// A descriptor, field by field (section 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// `DESC_F_*`.
    pub flags: u16,
    /// The descriptor that follows, with [`DESC_F_NEXT`].
    pub next: u16,
}

impl RawDescriptor {
    /// As it lies in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// The driver's side of a split virtqueue in a [`TestMemory`].
#[derive(Debug)]
pub struct DriverRing {
    memory: TestMemory,
    layout: RingLayout,
    features: RingFeatures,
    /// Descriptors that are in no chain; the last one is used next.
    free: Vec<u16>,
    /// The descriptors of each chain that the device has, by head.
    chains: BTreeMap<u16, Vec<u16>>,
    /// `avail.idx` once the added chains are published.
    next_avail: u16,
    /// The used entry to look at next.
    next_used: u16,
}

impl DriverRing {
    /// A queue of `size` entries (a power of two), with all indices at zero.
    pub fn new(memory: &TestMemory, size: u16, features: RingFeatures) -> DriverRing {
        DriverRing::with_base(memory, size, features, 0)
    }

    /// A queue whose available and used index begin at `base`.
    pub fn with_base(
        memory: &TestMemory,
        size: u16,
        features: RingFeatures,
        base: u16,
    ) -> DriverRing {
        let entries = u64::from(size);
        let layout = RingLayout {
            size,
            desc: memory.alloc(16 * entries, 16),
            avail: memory.alloc(6 + 2 * entries, 2),
            used: memory.alloc(6 + 8 * entries, 4),
        };
        let driver = DriverRing {
            memory: memory.clone(),
            layout,
            features,
            free: (0..size).rev().collect(),
            chains: BTreeMap::new(),
            next_avail: base,
            next_used: base,
        };
        driver.set_avail_idx(base);
        memory.store_u16(layout.used + 2, base);
        driver.set_used_event(base);
        memory.store_u16(driver.avail_event_addr(), base);
        driver
    }

    /// The addresses of the rings.
    pub fn layout(&self) -> RingLayout {
        self.layout
    }

    /// The features of the queue.
    pub fn features(&self) -> RingFeatures {
        self.features
    }

    /// The memory that the queue is in.
    pub fn memory(&self) -> &TestMemory {
        &self.memory
    }

    /// The device's side of this queue, started at what the available index is now.
    pub fn device_queue(&self) -> SplitRing {
        let memory = self.memory.guest_memory();
        SplitRing::new(&memory, self.layout, self.features, self.avail_idx())
            .expect("a well-formed queue")
    }

    /// Adds a request as a chain of descriptors and returns its head. The device does not see it
    /// before [`publish`](Self::publish).
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        let indices = self.take_descriptors(buffers.len());
        for (position, buffer) in buffers.iter().enumerate() {
            let next = indices.get(position + 1).copied();
            self.write_descriptor(indices[position], raw(buffer, next));
        }
        self.make_chain_available(indices)
    }

    /// Adds a request as one descriptor that refers to an indirect table, and returns its head.
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> u16 {
        self.add_mixed(&[], buffers)
    }

    /// Adds a request as descriptors for the `direct` buffers followed by one that refers to an
    /// indirect table with the others, and returns its head.
    pub fn add_mixed(&mut self, direct: &[Buffer], indirect: &[Buffer]) -> u16 {
        let table = self.memory.alloc(16 * indirect.len() as u64, 16);
        for (position, buffer) in indirect.iter().enumerate() {
            let index = to_u16(position);
            let next = (position + 1 < indirect.len()).then(|| index + 1);
            self.write_descriptor_in(table, index, raw(buffer, next));
        }
        let indices = self.take_descriptors(direct.len() + 1);
        for (buffer, pair) in direct.iter().zip(indices.windows(2)) {
            self.write_descriptor(pair[0], raw(buffer, Some(pair[1])));
        }
        let len = 16 * u32::from(to_u16(indirect.len()));
        let reference = RawDescriptor {
            addr: table,
            len,
            flags: DESC_F_INDIRECT,
            next: 0,
        };
        self.write_descriptor(indices[direct.len()], reference);
        self.make_chain_available(indices)
    }

    /// How many descriptors are in no chain.
    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    /// Shows the device everything added since the last time. True when the device wants to be
    /// kicked for it, by its `avail_event` or its `NO_NOTIFY` flag.
    pub fn publish(&mut self) -> bool {
        let old = self.avail_idx();
        let new = self.next_avail;
        self.set_avail_idx(new);
        fence(Ordering::SeqCst);
        if self.features.event_idx {
            // Section 2.7.7.2, with the roles exchanged.
            let since_event = new.wrapping_sub(self.avail_event()).wrapping_sub(1);
            since_event < new.wrapping_sub(old)
        } else {
            new != old && self.used_flags() & 1 == 0
        }
    }

    /// The requests that the device has published since the last time, as head and number of
    /// bytes written, in its order. Their descriptors are free again. Panics when the device names
    /// a chain that it does not have.
    pub fn take_used(&mut self) -> Vec<(u16, u32)> {
        let mut taken = Vec::new();
        while self.used_idx() != self.next_used {
            let (id, written_bytes) = self.used_entry(self.next_used);
            let head = u16::try_from(id).expect("used entry names no descriptor");
            let chain = self.chains.remove(&head);
            let mut indices =
                chain.expect("used entry names a chain that the device does not have");
            indices.reverse();
            self.free.append(&mut indices);
            self.next_used = self.next_used.wrapping_add(1);
            taken.push((head, written_bytes));
        }
        taken
    }

    /// Asks to be signalled when the used entry with index `index` is filled (`EVENT_IDX` only).
    pub fn set_used_event(&self, index: u16) {
        self.memory.store_u16(
            self.layout.avail + 4 + 2 * u64::from(self.layout.size),
            index,
        );
        fence(Ordering::SeqCst);
    }

    /// As a driver does before it waits: asks to be signalled for the next used entry that it has
    /// not taken, then looks again. True when one is there already.
    pub fn wait_for_next_used(&self) -> bool {
        self.set_used_event(self.next_used);
        self.used_idx() != self.next_used
    }

    /// Asks not to be signalled, or to be (without `EVENT_IDX`).
    pub fn set_no_interrupt(&self, no_interrupt: bool) {
        self.memory
            .store_u16(self.layout.avail, u16::from(no_interrupt));
        fence(Ordering::SeqCst);
    }

    /// The available index at which the device wants to be kicked (`EVENT_IDX` only).
    pub fn avail_event(&self) -> u16 {
        self.memory.load_u16(self.avail_event_addr())
    }

    /// `used.flags`: 1 when the device does not want to be kicked (without `EVENT_IDX`).
    pub fn used_flags(&self) -> u16 {
        self.memory.load_u16(self.layout.used)
    }

    /// `used.idx`.
    pub fn used_idx(&self) -> u16 {
        self.memory.load_u16(self.layout.used + 2)
    }

    /// The used ring's entry for `index`: head and number of bytes written.
    pub fn used_entry(&self, index: u16) -> (u32, u32) {
        let addr = self.layout.used + 4 + 8 * u64::from(index % self.layout.size);
        let word = |addr| {
            let low = u32::from(self.memory.load_u16(addr));
            low | u32::from(self.memory.load_u16(addr + 2)) << 16
        };
        (word(addr), word(addr + 4))
    }

    /// `avail.idx`.
    pub fn avail_idx(&self) -> u16 {
        self.memory.load_u16(self.layout.avail + 2)
    }

    /// Raw: sets `avail.idx`, whatever was added.
    pub fn set_avail_idx(&self, index: u16) {
        self.memory.store_u16(self.layout.avail + 2, index);
    }

    /// Raw: sets the available ring's entry for `index`.
    pub fn set_avail_entry(&self, index: u16, head: u16) {
        let position = u64::from(index % self.layout.size);
        self.memory
            .store_u16(self.layout.avail + 4 + 2 * position, head);
    }

    /// Raw: makes the chain at `head` available, whatever is there, and shows it to the device.
    pub fn make_available(&mut self, head: u16) {
        self.set_avail_entry(self.next_avail, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.set_avail_idx(self.next_avail);
    }

    /// Raw: writes descriptor `index` of the queue's table.
    pub fn write_descriptor(&self, index: u16, descriptor: RawDescriptor) {
        self.write_descriptor_in(self.layout.desc, index, descriptor);
    }

    /// Raw: writes descriptor `index` of the table at guest address `table`.
    pub fn write_descriptor_in(&self, table: u64, index: u16, descriptor: RawDescriptor) {
        self.memory
            .write(table + 16 * u64::from(index), &descriptor.to_bytes());
    }

    fn avail_event_addr(&self) -> u64 {
        self.layout.used + 4 + 8 * u64::from(self.layout.size)
    }

    /// Takes free descriptors of the table.
    fn take_descriptors(&mut self, count: usize) -> Vec<u16> {
        let left = self
            .free
            .len()
            .checked_sub(count)
            .expect("no descriptors left");
        let mut indices = self.free.split_off(left);
        indices.reverse();
        indices
    }

    /// Puts a chain into the available ring.
    fn make_chain_available(&mut self, indices: Vec<u16>) -> u16 {
        let head = *indices.first().expect("a request needs a buffer");
        self.set_avail_entry(self.next_avail, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.chains.insert(head, indices);
        head
    }
}

/// The descriptor of a buffer.
fn raw(buffer: &Buffer, next: Option<u16>) -> RawDescriptor {
    let mut flags = 0;
    if buffer.writable {
        flags |= DESC_F_WRITE;
    }
    if next.is_some() {
        flags |= DESC_F_NEXT;
    }
    RawDescriptor {
        addr: buffer.addr,
        len: buffer.len,
        flags,
        next: next.unwrap_or(0),
    }
}

fn to_u16(count: usize) -> u16 {
    u16::try_from(count).expect("at most 65535 descriptors")
}
