//! The guest's driver of one packed virtqueue, for tests: written from section 2.8, and independent of the device's side.
//!
//! Keeps the rules where it is asked to add buffers, and has raw writes beside them for tests of
//! broken drivers. What was written raw is not tracked.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};

use crate::layout::{RingFeatures, RingLayout};
use crate::packed::PackedRing;
use crate::testing::{Buffer, DESC_F_INDIRECT, DESC_F_NEXT, DESC_F_WRITE, TestMemory};

/// `VIRTQ_DESC_F_AVAIL`.
pub const PACKED_DESC_F_AVAIL: u16 = 0x80;
/// `VIRTQ_DESC_F_USED`.
pub const PACKED_DESC_F_USED: u16 = 0x8000;

/// Event suppression: when one side wants to be notified (section 2.8.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `RING_EVENT_FLAGS_ENABLE`.
    Always,
    /// `RING_EVENT_FLAGS_DISABLE`.
    Never,
    /// `RING_EVENT_FLAGS_DESC`: when this descriptor is passed, in the lap with this wrap counter.
    At(u16, bool),
    /// Flags that mean nothing.
    Reserved(u16),
}

/// A descriptor, field by field (section 2.8.13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawPackedDescriptor {
    /// Guest address of the buffer.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The buffer's name.
    pub id: u16,
    /// `DESC_F_*` and `PACKED_DESC_F_*`.
    pub flags: u16,
}

impl RawPackedDescriptor {
    /// As it lies in memory.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.id.to_le_bytes());
        bytes[14..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }
}

/// The driver's side of a packed virtqueue in a [`TestMemory`].
#[derive(Debug)]
pub struct PackedDriverRing {
    memory: TestMemory,
    layout: RingLayout,
    features: RingFeatures,
    /// Names that are in no request.
    ids: Vec<u16>,
    /// How many descriptors each request has, by name.
    added: BTreeMap<u16, u16>,
    /// Descriptors that belong to no request.
    free: u16,
    /// The descriptor that is written next, and the driver ring wrap counter.
    next_avail: (u16, bool),
    /// The descriptor where the next used entry comes, and the device ring wrap counter as the
    /// driver sees it.
    next_used: (u16, bool),
    /// Descriptors that were written since the last publish, in order.
    written: Vec<(u16, bool)>,
    /// The flags of the first of them, which are stored last.
    first_flags: u16,
}

impl PackedDriverRing {
    /// A queue of `size` descriptors (any number from 1), at its beginning.
    pub fn new(memory: &TestMemory, size: u16, features: RingFeatures) -> PackedDriverRing {
        PackedDriverRing::with_base(memory, size, features, (0, true))
    }

    /// A queue that has run for some laps: the next descriptor and wrap counter are `base`.
    pub fn with_base(
        memory: &TestMemory,
        size: u16,
        features: RingFeatures,
        base: (u16, bool),
    ) -> PackedDriverRing {
        let layout = RingLayout {
            size,
            desc: memory.alloc(16 * u64::from(size), 16),
            avail: memory.alloc(4, 4),
            used: memory.alloc(4, 4),
        };
        let driver = PackedDriverRing {
            memory: memory.clone(),
            layout,
            features,
            // Not in order, and not below the size: a name is any number.
            ids: (0..size)
                .map(|id| id.wrapping_mul(0x9e35) ^ 0x5a5a)
                .collect(),
            added: BTreeMap::new(),
            free: size,
            next_avail: base,
            next_used: base,
            written: Vec::new(),
            first_flags: 0,
        };
        // All was used, in this lap or the one before. At the very beginning that is all zeroes.
        let (index, wrap) = base;
        for at in 0..size {
            let lap = if at < index { wrap } else { !wrap };
            driver.store_flags(
                at,
                if lap {
                    PACKED_DESC_F_AVAIL | PACKED_DESC_F_USED
                } else {
                    0
                },
            );
        }
        driver
    }

    /// The addresses of the ring and the areas.
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

    /// The driver's position, as half of a vhost-user base.
    pub fn base(&self) -> u16 {
        self.next_avail.0 | u16::from(self.next_avail.1) << 15
    }

    /// The device's side of this queue, started at [`base`](Self::base).
    pub fn device_queue(&self) -> PackedRing {
        let memory = self.memory.guest_memory();
        PackedRing::new(&memory, self.layout, self.features, self.base())
            .expect("a well-formed queue")
    }

    /// How many descriptors belong to no request.
    pub fn free_descriptors(&self) -> u16 {
        self.free
    }

    /// Adds a request as a chain of descriptors and returns its name. The device does not see it
    /// before [`publish`](Self::publish).
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        let count = u16::try_from(buffers.len()).expect("few buffers");
        assert!(count > 0, "a request needs a buffer");
        let id = self.take(count);
        for (place, buffer) in (1..).zip(buffers) {
            let mut flags = if buffer.writable { DESC_F_WRITE } else { 0 };
            if place < count {
                flags |= DESC_F_NEXT;
            }
            // Only the last descriptor's name counts.
            let id = if place < count { !id } else { id };
            self.write_next(buffer.addr, buffer.len, id, flags);
        }
        id
    }

    /// Adds a request of these descriptors as they are, but for its name and the flags that make them
    /// available, and returns its name.
    pub fn add_raw(&mut self, descriptors: &[RawPackedDescriptor]) -> u16 {
        let id = self.take(u16::try_from(descriptors.len()).expect("few descriptors"));
        for descriptor in descriptors {
            self.write_next(descriptor.addr, descriptor.len, id, descriptor.flags);
        }
        id
    }

    /// Adds a request as one descriptor that refers to an indirect table, and returns its name.
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> u16 {
        let table = self.memory.alloc(16 * buffers.len() as u64, 16);
        for (at, buffer) in (table..).step_by(16).zip(buffers) {
            let write = if buffer.writable { DESC_F_WRITE } else { 0 };
            let descriptor = RawPackedDescriptor {
                addr: buffer.addr,
                len: buffer.len,
                // The name, and flags but WRITE, are ignored by the device.
                id: 0xdead,
                flags: write | DESC_F_NEXT | PACKED_DESC_F_USED,
            };
            self.write_at(at, descriptor);
        }
        let len = 16 * u32::try_from(buffers.len()).expect("few buffers");
        let id = self.take(1);
        self.write_next(table, len, id, DESC_F_INDIRECT);
        id
    }

    /// Shows the device everything added since the last time. True when the device wants to be
    /// kicked for it.
    pub fn publish(&mut self) -> bool {
        let written = std::mem::take(&mut self.written);
        let Some(&(first, _)) = written.first() else {
            return false;
        };
        fence(Ordering::Release);
        self.store_flags(first, self.first_flags);
        fence(Ordering::SeqCst);
        match self.device_event() {
            Event::Always | Event::Reserved(_) => true,
            Event::Never => false,
            Event::At(index, wrap) => written.contains(&(index, wrap)),
        }
    }

    /// The requests that the device has published since the last time, as name and number of bytes
    /// written, in its order. Panics when the device names a request that it does not have.
    pub fn take_used(&mut self) -> Vec<(u16, u32)> {
        let mut taken = Vec::new();
        while self.has_used() {
            let used = self.descriptor(self.next_used.0);
            let count = self.added.remove(&used.id);
            let count = count.expect("used entry names a request that the device does not have");
            for _ in 0..count {
                self.next_used = self.following(self.next_used);
            }
            self.free += count;
            self.ids.insert(0, used.id);
            let wrote = used.flags & DESC_F_WRITE != 0;
            taken.push((used.id, if wrote { used.len } else { 0 }));
        }
        taken
    }

    /// Whether there is a used entry that was not taken.
    pub fn has_used(&self) -> bool {
        let flags = self.descriptor(self.next_used.0).flags;
        let avail = flags & PACKED_DESC_F_AVAIL != 0;
        let used = flags & PACKED_DESC_F_USED != 0;
        avail == used && used == self.next_used.1
    }

    /// The descriptor and wrap counter of the used entry that is taken next.
    pub fn next_used(&self) -> (u16, bool) {
        self.next_used
    }

    /// Sets when the driver wants to be signalled.
    pub fn set_driver_event(&self, event: Event) {
        let (position, flags) = match event {
            Event::Always => (0, 0),
            Event::Never => (0, 1),
            Event::At(index, wrap) => (index | u16::from(wrap) << 15, 2),
            Event::Reserved(flags) => (0, flags),
        };
        self.memory.store_u16(self.layout.avail, position);
        self.memory.store_u16(self.layout.avail + 2, flags);
        fence(Ordering::SeqCst);
    }

    /// When the device wants to be kicked.
    pub fn device_event(&self) -> Event {
        let position = self.memory.load_u16(self.layout.used);
        match self.memory.load_u16(self.layout.used + 2) {
            0 => Event::Always,
            1 => Event::Never,
            2 => Event::At(position & 0x7fff, position >> 15 == 1),
            flags => Event::Reserved(flags),
        }
    }

    /// The flags that make a descriptor available in the lap of this wrap counter.
    pub fn available(wrap: bool) -> u16 {
        if wrap {
            PACKED_DESC_F_AVAIL
        } else {
            PACKED_DESC_F_USED
        }
    }

    /// Descriptor `index`, as it is now.
    pub fn descriptor(&self, index: u16) -> RawPackedDescriptor {
        let at = self.address(index);
        let flags = self.memory.load_u16(at + 14);
        fence(Ordering::Acquire);
        let bytes = self.memory.read(at, 14);
        let number = |range: std::ops::Range<usize>| {
            let bytes = bytes[range].iter().rev();
            bytes.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        RawPackedDescriptor {
            addr: number(0..8),
            len: u32::try_from(number(8..12)).expect("four bytes"),
            id: u16::try_from(number(12..14)).expect("two bytes"),
            flags,
        }
    }

    /// Raw: writes descriptor `index` of the ring.
    pub fn write_descriptor(&self, index: u16, descriptor: RawPackedDescriptor) {
        self.write_at(self.address(index), descriptor);
    }

    /// Raw: writes a descriptor at a guest address, its flags last.
    pub fn write_at(&self, at: u64, descriptor: RawPackedDescriptor) {
        let bytes = descriptor.to_bytes();
        self.memory.write(at, &bytes[..14]);
        self.memory.write(at + 14, &bytes[14..]);
    }

    fn address(&self, index: u16) -> u64 {
        assert!(index < self.layout.size, "no such descriptor");
        self.layout.desc + 16 * u64::from(index)
    }

    fn store_flags(&self, index: u16, flags: u16) {
        self.memory.store_u16(self.address(index) + 14, flags);
    }

    fn following(&self, (index, wrap): (u16, bool)) -> (u16, bool) {
        if index + 1 == self.layout.size {
            (0, !wrap)
        } else {
            (index + 1, wrap)
        }
    }

    /// A name for a request of so many descriptors.
    fn take(&mut self, descriptors: u16) -> u16 {
        self.free = self
            .free
            .checked_sub(descriptors)
            .expect("no descriptors left");
        let id = self.ids.pop().expect("as many names as descriptors");
        self.added.insert(id, descriptors);
        id
    }

    /// Writes the next descriptor of a chain. The first one of a batch gets its flags when the batch is published.
    fn write_next(&mut self, addr: u64, len: u32, id: u16, flags: u16) {
        let (index, wrap) = self.next_avail;
        let flags = flags | PackedDriverRing::available(wrap);
        let mut descriptor = RawPackedDescriptor {
            addr,
            len,
            id,
            flags,
        };
        if self.written.is_empty() {
            // Until it is published the device finds what was there before.
            self.first_flags = flags;
            descriptor.flags = self.descriptor(index).flags;
        }
        self.write_descriptor(index, descriptor);
        self.written.push((index, wrap));
        self.next_avail = self.following(self.next_avail);
    }
}
