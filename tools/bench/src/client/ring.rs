//! The driver's side of a split virtqueue (virtio specification 1.2, 2.7), with `EVENT_IDX` where
//! the server has it and with the flags of both rings where it has not.
//!
//! It moves heads of descriptor chains; what the chains are is not known here. What it writes for
//! the server to see it writes as rarely as it can: each such line costs both sides.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use super::layout::QueuePlace;
use super::memory::SharedMemory;

/// Index of the field `flags` in either ring, in 16-bit words.
const FLAGS: usize = 0;
/// And of `idx`.
const IDX: usize = 1;
/// The available ring's entries begin after both.
const AVAIL_ENTRIES: usize = 2;

/// In the available ring's flags: do not call.
const NO_INTERRUPT: u16 = 1;
/// In the used ring's flags: do not kick.
const NO_NOTIFY: u16 = 1;

/// After so many completions the place that calls are suppressed up to is moved along: far before
/// the 2^16 after which it would be passed.
const RENEW_AFTER: u16 = 1 << 14;

/// The driver's side of one queue.
pub struct DriverRing<'m> {
    avail: &'m [AtomicU16],
    avail_entries: &'m [AtomicU16],
    used: &'m [AtomicU16],
    used_entries: &'m [AtomicU32],
    avail_event: &'m AtomicU16,
    used_event: &'m AtomicU16,
    mask: u16,
    event_idx: bool,
    /// Next available index; those before it may not be published yet.
    next_avail: u16,
    published: u16,
    next_used: u16,
    /// Where `next_used` was when calls were suppressed; `None` while a call is asked for.
    suppressed: Option<u16>,
}

impl<'m> DriverRing<'m> {
    /// Over rings that are empty, all zeroes. `event_idx`: the feature is agreed on.
    #[must_use]
    pub fn new(memory: &'m SharedMemory, place: QueuePlace, event_idx: bool) -> Self {
        let entries = usize::from(place.size);
        let avail = memory.u16s(place.avail, AVAIL_ENTRIES + entries + 1);
        DriverRing {
            avail,
            avail_entries: &avail[AVAIL_ENTRIES..AVAIL_ENTRIES + entries],
            used: memory.u16s(place.used, 2),
            used_entries: memory.u32s(place.used + 4, 2 * entries),
            avail_event: &memory.u16s(place.used + 4 + 8 * entries, 1)[0],
            used_event: &avail[AVAIL_ENTRIES + entries],
            mask: place.size - 1,
            event_idx,
            next_avail: 0,
            published: 0,
            next_used: 0,
            suppressed: None,
        }
    }

    /// Makes the chain that begins at descriptor `head` available at the next
    /// [`DriverRing::publish`]. The caller has no more chains in the ring than it has entries.
    #[inline]
    pub fn push(&mut self, head: u16) {
        let entry = usize::from(self.next_avail & self.mask);
        self.avail_entries[entry].store(head.to_le(), Ordering::Relaxed);
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
        if self.event_idx {
            let event = u16::from_le(self.avail_event.load(Ordering::Relaxed));
            wants_event(event, self.next_avail, old)
        } else {
            u16::from_le(self.used[FLAGS].load(Ordering::Relaxed)) & NO_NOTIFY == 0
        }
    }

    /// How many chains have completed that [`DriverRing::pop`] has not returned yet.
    #[inline]
    #[must_use]
    pub fn completed(&self) -> u16 {
        u16::from_le(self.used[IDX].load(Ordering::Acquire)).wrapping_sub(self.next_used)
    }

    /// The head of the next completed chain; [`DriverRing::completed`] said that there is one.
    #[inline]
    pub fn pop(&mut self) -> u32 {
        let entry = 2 * usize::from(self.next_used & self.mask);
        self.next_used = self.next_used.wrapping_add(1);
        u32::from_le(self.used_entries[entry].load(Ordering::Relaxed))
    }

    /// Asks for no calls. To be repeated after each batch, which mostly costs nothing.
    #[inline]
    pub fn suppress_calls(&mut self) {
        let since = self.suppressed.map(|at| self.next_used.wrapping_sub(at));
        if since.is_none_or(|completions| completions >= RENEW_AFTER) {
            self.suppressed = Some(self.next_used);
            if self.event_idx {
                // Not before 2^16 more completions, that is.
                let never = self.next_used.wrapping_sub(1);
                self.used_event.store(never.to_le(), Ordering::Relaxed);
            } else {
                self.avail[FLAGS].store(NO_INTERRUPT.to_le(), Ordering::Relaxed);
            }
        }
    }

    /// Asks for a call at the next completion. True when there is one already: then do not wait.
    #[inline]
    #[must_use]
    pub fn request_call(&mut self) -> bool {
        self.suppressed = None;
        if self.event_idx {
            self.used_event
                .store(self.next_used.to_le(), Ordering::Relaxed);
        } else {
            self.avail[FLAGS].store(0, Ordering::Relaxed);
        }
        // Section 2.7.14: our wish is seen before we look for the last time.
        fence(Ordering::SeqCst);
        self.completed() > 0
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
    fn ring_works_across_the_wrap_of_indices() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place, true);
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
                assert_eq!(ring.completed(), 0);
                complete(&memory, place, index, u32::from(head));
                assert_eq!(ring.completed(), 1);
                assert_eq!(ring.pop(), u32::from(head));
            }
        }
    }

    #[test]
    fn publish_kicks_when_the_device_wants_it() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place, true);
        let event = &memory.u16s(place.used + 4 + 32, 1)[0];
        ring.push(0);
        assert!(ring.publish(), "avail_event is 0: tell of the first");
        ring.push(1);
        assert!(!ring.publish(), "notified once");
        assert!(!ring.publish(), "nothing new");
        event.store(3, Ordering::Relaxed);
        ring.push(0);
        assert!(!ring.publish());
        ring.push(1);
        assert!(ring.publish(), "the fourth was asked for");
    }

    #[test]
    fn flags_decide_about_kicks_without_event_idx() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place, false);
        let device_flags = &memory.u16s(place.used, 1)[0];
        let driver_flags = || memory.u16s(place.avail, 1)[0].load(Ordering::Relaxed);
        ring.push(0);
        assert!(ring.publish());
        ring.push(1);
        assert!(ring.publish(), "notified of each");
        device_flags.store(NO_NOTIFY, Ordering::Relaxed);
        ring.push(2);
        assert!(!ring.publish());
        ring.suppress_calls();
        assert_eq!(driver_flags(), NO_INTERRUPT);
        assert!(!ring.request_call());
        assert_eq!(driver_flags(), 0);
        ring.suppress_calls();
        assert_eq!(driver_flags(), NO_INTERRUPT);
    }

    #[test]
    fn call_is_requested_for_the_next_completion_only() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place, true);
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

    #[test]
    fn calls_stay_suppressed_over_any_number_of_completions() {
        let (memory, place) = place();
        let mut ring = DriverRing::new(&memory, place, true);
        let event = || memory.u16s(place.avail + 4 + 8, 1)[0].load(Ordering::Relaxed);
        ring.suppress_calls();
        for index in 0..3 * (1u32 << 16) {
            let [old, new] = [index, index + 1].map(|index| {
                // The rings' indices are the lower 16 bits.
                #[allow(clippy::cast_possible_truncation)]
                let index = index as u16;
                index
            });
            assert!(!wants_event(event(), new, old), "completion {index}");
            complete(&memory, place, old, 0);
            ring.pop();
            ring.suppress_calls();
        }
    }
}
