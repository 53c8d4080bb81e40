//! A driver of either form of ring.

use virtqueue::testing::{Buffer, DriverRing, Event, PackedDriverRing, TestMemory};
use virtqueue::{RingFeatures, RingLayout};

/// The driver's side of a queue.
pub enum Driver {
    /// Split.
    Split(DriverRing),
    /// Packed, and whether it may say at which entry it wants to be signalled.
    Packed(PackedDriverRing),
}

impl Driver {
    /// A new queue. `base` is where a split one begins.
    pub fn new(memory: &TestMemory, size: u16, features: RingFeatures, base: u16) -> Self {
        match features.packed {
            true => Driver::Packed(PackedDriverRing::new(memory, size, features)),
            false => Driver::Split(DriverRing::with_base(memory, size, features, base)),
        }
    }

    /// Where its rings are.
    pub fn layout(&self) -> RingLayout {
        match self {
            Driver::Split(ring) => ring.layout(),
            Driver::Packed(ring) => ring.layout(),
        }
    }

    /// Descriptors for requests to come.
    pub fn free(&self) -> usize {
        match self {
            Driver::Split(ring) => ring.free_descriptors(),
            Driver::Packed(ring) => ring.free_descriptors().into(),
        }
    }

    /// Adds a request; how it is called.
    pub fn add(&mut self, buffers: &[Buffer], indirect: bool) -> u16 {
        match self {
            Driver::Split(ring) if indirect => ring.add_indirect(buffers),
            Driver::Split(ring) => ring.add(buffers),
            Driver::Packed(ring) if indirect => ring.add_indirect(buffers),
            Driver::Packed(ring) => ring.add(buffers),
        }
    }

    /// Shows what was added; whether the device is to be kicked.
    pub fn publish(&mut self) -> bool {
        match self {
            Driver::Split(ring) => ring.publish(),
            Driver::Packed(ring) => ring.publish(),
        }
    }

    /// What is done, and how many bytes were written.
    pub fn take_used(&mut self) -> Vec<(u16, u32)> {
        match self {
            Driver::Split(ring) => ring.take_used(),
            Driver::Packed(ring) => ring.take_used(),
        }
    }

    /// It need not be signalled.
    pub fn polls(&mut self, event_idx: bool) {
        match self {
            // Behind what is there: met again after 65535 more.
            Driver::Split(ring) if event_idx => {
                ring.set_used_event(ring.used_idx().wrapping_sub(1))
            }
            Driver::Split(ring) => ring.set_no_interrupt(true),
            Driver::Packed(ring) => ring.set_driver_event(Event::Never),
        }
    }

    /// It wants to be signalled when `more` requests are done behind the next one, if the ring can say that. True: the next
    /// one is done already, and it may not be signalled for that.
    pub fn sleeps(&mut self, event_idx: bool, more: u16) -> bool {
        match self {
            Driver::Split(ring) if event_idx => {
                let done = ring.wait_for_next_used();
                if !done && more > 0 {
                    // All that was taken is what the used index is.
                    ring.set_used_event(ring.used_idx().wrapping_add(more));
                    // As drivers do: if as many have come meanwhile, there is no signal to wait for.
                    return false;
                }
                done
            }
            Driver::Split(ring) => {
                ring.set_no_interrupt(false);
                ring.wait_for_next_used()
            }
            Driver::Packed(ring) => {
                let (index, wrap) = ring.next_used();
                ring.set_driver_event(match event_idx {
                    true => Event::At(index, wrap),
                    false => Event::Always,
                });
                let done = ring.has_used();
                if event_idx && !done && more > 0 {
                    // Each of them has one descriptor at least. As above.
                    let (size, ahead) = (ring.layout().size, index + more);
                    ring.set_driver_event(match ahead < size {
                        true => Event::At(ahead, wrap),
                        false => Event::At(ahead - size, !wrap),
                    });
                }
                done
            }
        }
    }

    /// What a front-end says that has no answer of the device's: the used index, or, for a packed ring, where it began.
    pub fn base_after_crash(&self) -> u32 {
        match self {
            Driver::Split(ring) => ring.used_idx().into(),
            Driver::Packed(_) => 0x8000,
        }
    }
}
