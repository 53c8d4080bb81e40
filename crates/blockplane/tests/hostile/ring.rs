//! The driver's side of a queue, in the form that the guest negotiated.

use virtqueue::RingLayout;
use virtqueue::testing::{
    Buffer, DriverRing, Event, PackedDriverRing, RawDescriptor, RawPackedDescriptor,
};

/// A queue of either form.
pub enum Ring {
    Split {
        ring: DriverRing,
        /// `used.idx` when the last request was made.
        seen: u16,
    },
    Packed(PackedDriverRing),
}

impl Ring {
    /// The split queue that a row is about.
    pub fn split(&mut self) -> &mut DriverRing {
        match self {
            Ring::Split { ring, .. } => ring,
            Ring::Packed(_) => panic!("the row is about split queues"),
        }
    }

    /// The packed queue that a row is about.
    pub fn packed(&mut self) -> &mut PackedDriverRing {
        match self {
            Ring::Packed(ring) => ring,
            Ring::Split { .. } => panic!("the row is about packed queues"),
        }
    }

    pub fn layout(&self) -> RingLayout {
        match self {
            Ring::Split { ring, .. } => ring.layout(),
            Ring::Packed(ring) => ring.layout(),
        }
    }

    /// What `SET_VRING_BASE` says of a queue that is new.
    pub fn first_base(&self) -> u32 {
        match self {
            Ring::Split { .. } => 0,
            Ring::Packed(_) => 0x8000_8000,
        }
    }

    pub fn add(&mut self, buffers: &[Buffer]) {
        match self {
            Ring::Split { ring, .. } => ring.add(buffers),
            Ring::Packed(ring) => ring.add(buffers),
        };
    }

    /// Shows the device what was added.
    pub fn publish(&mut self) {
        match self {
            Ring::Split { ring, .. } => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        };
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
    pub fn table(&self, descriptors: &[RawDescriptor]) -> Vec<u8> {
        let bytes = |descriptor: &RawDescriptor| match self {
            Ring::Split { .. } => descriptor.to_bytes(),
            Ring::Packed(_) => packed(descriptor).to_bytes(),
        };
        descriptors.iter().flat_map(bytes).collect()
    }

    /// Asks to be signalled for the next used entry (with `EVENT_IDX`).
    pub fn signal_next(&mut self) {
        match self {
            Ring::Split { ring, seen } => ring.set_used_event(*seen),
            Ring::Packed(ring) => {
                let (index, wrap) = ring.next_used();
                ring.set_driver_event(Event::At(index, wrap));
            }
        }
    }

    /// Where the device wants to be kicked (with `EVENT_IDX`).
    pub fn kick_at(&self) -> Option<u16> {
        match self {
            Ring::Split { ring, .. } => Some(ring.avail_event()),
            Ring::Packed(ring) => match ring.device_event() {
                Event::At(index, _) => Some(index),
                _ => None,
            },
        }
    }

    /// Whether a used entry has come since this last said so. A packed queue's are taken then.
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

    /// Gives the descriptors of answered requests free.
    pub fn take_used(&mut self) {
        match self {
            Ring::Split { ring, .. } => ring.take_used(),
            Ring::Packed(ring) => ring.take_used(),
        };
    }
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
