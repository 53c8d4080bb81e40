//! The driver's side of a queue of either form, with the notifications of `VIRTIO_RING_F_EVENT_IDX`.

use virtqueue::testing::{Buffer, DriverRing, Event, PackedDriverRing, TestMemory};
use virtqueue::{RingFeatures, RingLayout};

/// Entries of a split queue. The record has as many.
pub const ENTRIES: u16 = 64;
/// Descriptors of a packed one: laps end in the middle of chains.
const PACKED_ENTRIES: u16 = 61;

pub enum Ring {
    Split(DriverRing),
    Packed(PackedDriverRing),
}

impl Ring {
    pub fn new(memory: &TestMemory, packed: bool) -> Self {
        let features = RingFeatures {
            event_idx: true,
            indirect: false,
            packed,
        };
        if packed {
            Ring::Packed(PackedDriverRing::new(memory, PACKED_ENTRIES, features))
        } else {
            // Indices pass their ends soon.
            Ring::Split(DriverRing::with_base(memory, ENTRIES, features, 65_000))
        }
    }

    pub fn layout(&self) -> RingLayout {
        match self {
            Ring::Split(ring) => ring.layout(),
            Ring::Packed(ring) => ring.layout(),
        }
    }

    /// What a front-end says that was not told where the queue stands: of a split queue the used index, of a packed one
    /// that it is new.
    pub fn base(&self) -> u32 {
        match self {
            Ring::Split(ring) => ring.used_idx().into(),
            Ring::Packed(_) => 0x8000_8000,
        }
    }

    /// Makes a request available; returns what the used entry will call it.
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        match self {
            Ring::Split(ring) => ring.add(buffers),
            Ring::Packed(ring) => ring.add(buffers),
        }
    }

    /// Shows the device what was added; true if it wants to be kicked.
    pub fn publish(&mut self) -> bool {
        match self {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        }
    }

    /// What was answered. Panics if it was not asked for, or was answered before.
    pub fn take_used(&mut self) -> Vec<u16> {
        let taken = match self {
            Ring::Split(ring) => ring.take_used(),
            Ring::Packed(ring) => ring.take_used(),
        };
        taken.into_iter().map(|(name, _)| name).collect()
    }

    /// Asks to be called for the next answer; true if that is there already.
    pub fn wait_for_next_used(&self) -> bool {
        match self {
            Ring::Split(ring) => ring.wait_for_next_used(),
            Ring::Packed(ring) => {
                let (index, wrap) = ring.next_used();
                ring.set_driver_event(Event::At(index, wrap));
                ring.has_used()
            }
        }
    }
}
