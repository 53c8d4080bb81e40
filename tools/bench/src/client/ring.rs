//! The driver's side of a split virtqueue (virtio specification 1.2, 2.7), with `EVENT_IDX` where
//! the server has it and with the flags of both rings where it has not.
//!
//! It moves heads of descriptor chains; what the chains are is not known here. What it writes for
//! the server to see it writes as rarely as it can: each such line costs both sides.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use super::doorbells::Doorbells;
use super::layout::QueuePlace;
use super::memory::SharedMemory;
use super::queue::Queue;
use crate::error::Result;

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
    doorbells: &'m Doorbells,
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
    pub fn new(
        memory: &'m SharedMemory,
        place: QueuePlace,
        event_idx: bool,
        doorbells: &'m Doorbells,
    ) -> Self {
        let entries = usize::from(place.size);
        let avail = memory.u16s(place.avail, AVAIL_ENTRIES + entries + 1);
        DriverRing {
            doorbells,
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

    /// Shows the device what was pushed. Returns whether it wants a kick.
    #[inline]
    fn show(&mut self) -> bool {
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
}

/// A head is that of a descriptor chain. The caller has no more chains in the ring than it has entries.
impl Queue for DriverRing<'_> {
    fn call_fd(&self) -> BorrowedFd<'_> {
        self.doorbells.call_fd()
    }

    #[inline]
    fn push(&mut self, head: u16) -> Result<()> {
        let entry = usize::from(self.next_avail & self.mask);
        self.avail_entries[entry].store(head.to_le(), Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn publish(&mut self) -> Result<()> {
        if self.show() {
            self.doorbells.kick();
        }
        Ok(())
    }

    #[inline]
    fn completed(&self) -> u16 {
        u16::from_le(self.used[IDX].load(Ordering::Acquire)).wrapping_sub(self.next_used)
    }

    #[inline]
    fn pop(&mut self) -> u32 {
        let entry = 2 * usize::from(self.next_used & self.mask);
        self.next_used = self.next_used.wrapping_add(1);
        u32::from_le(self.used_entries[entry].load(Ordering::Relaxed))
    }

    #[inline]
    fn suppress_calls(&mut self) {
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

    #[inline]
    fn request_call(&mut self) -> bool {
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

    fn called(&mut self) -> Result<()> {
        self.suppress_calls();
        Ok(())
    }
}

/// Section 2.7.7.2: whether an index that went from `old` to `new` has passed `event`.
#[inline]
fn wants_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
