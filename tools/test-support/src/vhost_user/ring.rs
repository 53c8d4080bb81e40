//! The driver's side of a queue, split or packed.

use virtqueue::testing::{
    Buffer, DriverRing, Event, PackedDriverRing, RawDescriptor, RawPackedDescriptor, TestMemory,
};
use virtqueue::{RingFeatures, RingLayout};

/// A queue of either form.
#[derive(Debug)]
pub enum Ring {
    /// A split virtqueue (VIRTIO 1.2, section 2.7).
    Split {
        /// The driver.
        ring: DriverRing,
        /// `used.idx` as [`Ring::has_answered`] saw it last.
        seen: u16,
    },
    /// A packed virtqueue (VIRTIO 1.2, section 2.8).
    Packed(PackedDriverRing),
}

impl Ring {
    /// A new queue, of the form that the features choose.
    #[must_use]
    pub fn new(memory: &TestMemory, entries: u16, features: RingFeatures) -> Self {
        if features.packed {
            Ring::Packed(PackedDriverRing::new(memory, entries, features))
        } else {
            Ring::split_at(memory, entries, features, 0)
        }
    }

    /// A split queue whose indices begin at `base`.
    #[must_use]
    pub fn split_at(memory: &TestMemory, entries: u16, features: RingFeatures, base: u16) -> Self {
        Ring::Split {
            ring: DriverRing::with_base(memory, entries, features, base),
            seen: base,
        }
    }

    /// The split queue that a test is about.
    pub fn split(&mut self) -> &mut DriverRing {
        match self {
            Ring::Split { ring, .. } => ring,
            Ring::Packed(_) => panic!("the test is about split queues"),
        }
    }

    /// The packed queue that a test is about.
    pub fn packed(&mut self) -> &mut PackedDriverRing {
        match self {
            Ring::Packed(ring) => ring,
            Ring::Split { .. } => panic!("the test is about packed queues"),
        }
    }

    /// Where it is in guest memory.
    #[must_use]
    pub fn layout(&self) -> RingLayout {
        match self {
            Ring::Split { ring, .. } => ring.layout(),
            Ring::Packed(ring) => ring.layout(),
        }
    }

    /// What `SET_VRING_BASE` says where no server has reported where the queue stopped: of a split queue the used index, of a
    /// packed one that it is new.
    #[must_use]
    pub fn base(&self) -> u32 {
        match self {
            Ring::Split { ring, .. } => ring.used_idx().into(),
            Ring::Packed(_) => 0x8000_8000,
        }
    }

    /// How many descriptors are in no request.
    #[must_use]
    pub fn free_descriptors(&self) -> usize {
        match self {
            Ring::Split { ring, .. } => ring.free_descriptors(),
            Ring::Packed(ring) => ring.free_descriptors().into(),
        }
    }

    /// Adds a request, which the device finds in an indirect table.
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> u16 {
        match self {
            Ring::Split { ring, .. } => ring.add_indirect(buffers),
            Ring::Packed(ring) => ring.add_indirect(buffers),
        }
    }

    /// Adds a request; returns the id of its used entry.
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        match self {
            Ring::Split { ring, .. } => ring.add(buffers),
            Ring::Packed(ring) => ring.add(buffers),
        }
    }

    /// Makes what was added available; true if the device wants to be kicked.
    pub fn publish(&mut self) -> bool {
        match self {
            Ring::Split { ring, .. } => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        }
    }

    /// Makes these descriptors available as they are: a split queue's first ones, or a packed queue's
    /// next ones, where `next` means nothing.
    pub fn add_raw(&mut self, descriptors: &[RawDescriptor]) {
        match self {
            Ring::Split { ring, .. } => {
                for (index, descriptor) in (0..).zip(descriptors) {
                    ring.write_descriptor(index, *descriptor);
                }
                ring.make_available(0);
            }
            Ring::Packed(ring) => {
                ring.add_raw(&descriptors.iter().map(packed).collect::<Vec<_>>());
                ring.publish();
            }
        }
    }

    /// An indirect table of these descriptors, as it lies in memory.
    #[must_use]
    pub fn table(&self, descriptors: &[RawDescriptor]) -> Vec<u8> {
        let bytes = |descriptor: &RawDescriptor| match self {
            Ring::Split { .. } => descriptor.to_bytes(),
            Ring::Packed(_) => packed(descriptor).to_bytes(),
        };
        descriptors.iter().flat_map(bytes).collect()
    }

    /// Asks to be signalled for the used entry after those that [`Ring::has_answered`] saw (with `EVENT_IDX`).
    pub fn signal_next(&mut self) {
        match self {
            Ring::Split { ring, seen } => ring.set_used_event(*seen),
            Ring::Packed(ring) => signal_next_packed(ring),
        }
    }

    /// Asks to be signalled for the used entry after those that were taken; true if it is there already.
    pub fn wait_for_next_used(&self) -> bool {
        match self {
            Ring::Split { ring, .. } => ring.wait_for_next_used(),
            Ring::Packed(ring) => {
                signal_next_packed(ring);
                ring.has_used()
            }
        }
    }

    /// Where the device wants to be kicked (with `EVENT_IDX`).
    #[must_use]
    pub fn kick_at(&self) -> Option<u16> {
        match self {
            Ring::Split { ring, .. } => Some(ring.avail_event()),
            Ring::Packed(ring) => match ring.device_event() {
                Event::At(index, _) => Some(index),
                _ => None,
            },
        }
    }

    /// Whether there is a used entry that this has not seen yet. A packed queue's are taken then.
    pub fn has_answered(&mut self) -> bool {
        match self {
            Ring::Split { ring, seen } => {
                let answered = ring.used_idx() != *seen;
                *seen = seen.wrapping_add(u16::from(answered));
                answered
            }
            Ring::Packed(ring) => !ring.take_used().is_empty(),
        }
    }

    /// Takes the ids of used entries, and frees their descriptors. Panics if one of them was not in flight.
    pub fn take_used(&mut self) -> Vec<u16> {
        let taken = match self {
            Ring::Split { ring, .. } => ring.take_used(),
            Ring::Packed(ring) => ring.take_used(),
        };
        taken.into_iter().map(|(id, _)| id).collect()
    }
}

fn signal_next_packed(ring: &PackedDriverRing) {
    let (index, wrap) = ring.next_used();
    ring.set_driver_event(Event::At(index, wrap));
}

fn packed(descriptor: &RawDescriptor) -> RawPackedDescriptor {
    let RawDescriptor {
        addr, len, flags, ..
    } = *descriptor;
    RawPackedDescriptor {
        addr,
        len,
        flags,
        id: 0,
    }
}
