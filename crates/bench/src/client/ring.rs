//! The driver's side of a split virtqueue with `EVENT_IDX` (virtio specification 1.2, 2.7).
//!
//! It moves heads of descriptor chains; what the chains are is not known here.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use super::layout::QueuePlace;
use super::memory::SharedMemory;

/// Index of the field `idx` in either ring, in 16-bit words; `flags` is before it.
const IDX: usize = 1;
/// The available ring's entries begin after both.
const AVAIL_ENTRIES: usize = 2;

/// The driver's side of one queue.
pub struct DriverRing<'m> {
    avail: &'m [AtomicU16],
    used: &'m [AtomicU16],
    used_entries: &'m [AtomicU32],
    avail_event: &'m AtomicU16,
    used_event: &'m AtomicU16,
    mask: u16,
    /// Next available index; those before it may not be published yet.
    next_avail: u16,
    published: u16,
    next_used: u16,
}

impl<'m> DriverRing<'m> {
    /// Over rings that are empty, all zeroes.
    #[must_use]
    pub fn new(memory: &'m SharedMemory, place: QueuePlace) -> Self {
        let entries = usize::from(place.size);
        let avail = memory.u16s(place.avail, AVAIL_ENTRIES + entries + 1);
        DriverRing {
            avail,
            used: memory.u16s(place.used, 2),
            used_entries: memory.u32s(place.used + 4, 2 * entries),
            avail_event: &memory.u16s(place.used + 4 + 8 * entries, 1)[0],
            used_event: &avail[AVAIL_ENTRIES + entries],
            mask: place.size - 1,
            next_avail: 0,
            published: 0,
            next_used: 0,
        }
    }

    /// Makes the chain that begins at descriptor `head` available at the next
    /// [`DriverRing::publish`]. The caller has no more chains in the ring than it has entries.
    #[inline]
    pub fn push(&mut self, head: u16) {
        let entry = AVAIL_ENTRIES + usize::from(self.next_avail & self.mask);
        self.avail[entry].store(head.to_le(), Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Shows the device what was pushed. Returns whether it wants a kick.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let old = std::mem::replace(&mut self.published, self.next_avail);
        if old == self.next_avail {
            return false;
        }
        self.avail[IDX].store(self.next_avail.to_le(), Ordering::Release);
        // Section 2.7.13.4.1: the index is seen before the device's wish is read.
        fence(Ordering::SeqCst);
        let event = u16::from_le(self.avail_event.load(Ordering::Relaxed));
        wants_event(event, self.next_avail, old)
    }

    /// The head of the next completed chain.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let used = u16::from_le(self.used[IDX].load(Ordering::Acquire));
        if used == self.next_used {
            return None;
        }
        let entry = 2 * usize::from(self.next_used & self.mask);
        self.next_used = self.next_used.wrapping_add(1);
        Some(u32::from_le(
            self.used_entries[entry].load(Ordering::Relaxed),
        ))
    }

    /// Whether something has completed.
    #[inline]
    #[must_use]
    pub fn has_used(&self) -> bool {
        u16::from_le(self.used[IDX].load(Ordering::Acquire)) != self.next_used
    }

    /// Asks for no calls: not before 2^16 more completions, that is.
    #[inline]
    pub fn suppress_calls(&mut self) {
        let never = self.next_used.wrapping_sub(1);
        self.used_event.store(never.to_le(), Ordering::Relaxed);
    }

    /// Asks for a call at the next completion. True when there is one already: then do not wait.
    #[inline]
    #[must_use]
    pub fn request_call(&mut self) -> bool {
        self.used_event
            .store(self.next_used.to_le(), Ordering::Relaxed);
        // Section 2.7.14: our wish is seen before we look for the last time.
        fence(Ordering::SeqCst);
        self.has_used()
    }
}

/// Section 2.7.7.2: whether an index that went from `old` to `new` has passed `event`.
#[inline]
fn wants_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Layout;

    const SIZE: u16 = 4;

    fn place() -> (SharedMemory, QueuePlace) {
        let mut layout = Layout::new();
        let place = layout.queue(SIZE);
        (SharedMemory::new(layout.len_bytes()).unwrap(), place)
    }

    /// What a device writes.
    fn complete(memory: &SharedMemory, place: QueuePlace, index: u16, head: u32) {
        let entry = 2 * usize::from(index & (SIZE - 1));
        memory.u32s(place.used + 4, 8)[entry].store(head, Ordering::Relaxed);
        memory.u16s(place.used, 2)[IDX].store(index.wrapping_add(1), Ordering::Release);
    }

    #[test]
    fn heads_go_out_and_come_back_over_the_wrap_of_the_indices() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place);
        for round in 0..=u16::MAX {
            for head in 0..2u16 {
                let index = round.wrapping_mul(2).wrapping_add(head);
                ring.push(head);
                let _ = ring.publish();
                assert_eq!(
                    memory.u16s(place.avail, 2)[1].load(Ordering::Relaxed),
                    index.wrapping_add(1)
                );
                let entry = 2 + usize::from(index & (SIZE - 1));
                assert_eq!(
                    memory.u16s(place.avail, 6)[entry].load(Ordering::Relaxed),
                    head
                );
                assert_eq!(ring.pop(), None);
                complete(&memory, place, index, u32::from(head));
                assert_eq!(ring.pop(), Some(u32::from(head)));
            }
        }
    }

    #[test]
    fn a_kick_when_the_device_wants_one() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place);
        let event = &memory.u16s(place.used + 4 + 32, 1)[0];
        ring.push(0);
        assert!(ring.publish(), "avail_event is 0: tell of the first");
        ring.push(1);
        assert!(!ring.publish(), "told once");
        assert!(!ring.publish(), "nothing new");
        event.store(3, Ordering::Relaxed);
        ring.push(0);
        assert!(!ring.publish());
        ring.push(1);
        assert!(ring.publish(), "the fourth was asked for");
    }

    #[test]
    fn a_call_is_asked_for_at_the_next_completion_only() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place);
        let event = || memory.u16s(place.avail + 4 + 8, 1)[0].load(Ordering::Relaxed);
        complete(&memory, place, 0, 0);
        assert!(ring.request_call(), "there is one already");
        ring.pop();
        assert!(!ring.request_call());
        assert!(wants_event(event(), 2, 1), "the next one calls");
        ring.suppress_calls();
        assert!(!wants_event(event(), 2, 1));
        assert!(!wants_event(event(), 1 + SIZE, 1), "not for a whole ring");
    }
}
