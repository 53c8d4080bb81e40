//! Timers of a loop: sets and cancels them, and pops those that have expired, soonest first.
//!
//! A binary heap of (deadline, slot, generation) beside a slab of tags.
//! Cancelling frees the slot at once and leaves the heap entry behind, to be dropped when it
//! surfaces; when such leftovers outnumber the living the heap is rebuilt, so that a timer that is
//! set and cancelled for ever costs no memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Identifier of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TimerId {
    slot: u32,
    generation: u32,
}

/// Dead heap entries before a rebuild.
const LEFTOVERS_TOLERATED: usize = 64;

/// The timers of one loop; `T` is the tag that the runner is called with.
pub struct Timers<T> {
    heap: BinaryHeap<Reverse<(u64, TimerId)>>,
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    live: usize,
}

impl<T: Copy> Default for Timers<T> {
    fn default() -> Self {
        Timers {
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
        }
    }
}

impl<T: Copy> Timers<T> {
    /// Sets a timer for `deadline_ns` on the poller's clock.
    ///
    /// # Panics
    /// With 2^32 - 1 timers pending.
    pub fn insert(&mut self, deadline_ns: u64, timer: T) -> TimerId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 timers")
        });
        let (generation, place) = &mut self.slots[slot as usize];
        *place = Some(timer);
        let id = TimerId {
            slot,
            generation: *generation,
        };
        self.heap.push(Reverse((deadline_ns, id)));
        self.live += 1;
        id
    }

    /// Cancels a timer; false when it has expired or was cancelled before.
    pub fn cancel(&mut self, id: TimerId) -> bool {
        let cancelled = self.free_slot(id).is_some();
        if self.heap.len() > 2 * self.live + LEFTOVERS_TOLERATED {
            let slots = &self.slots;
            self.heap
                .retain(|Reverse((_, id))| is_timer_live(slots, *id));
        }
        cancelled
    }

    /// Deadline of the next timer.
    #[must_use]
    pub fn next_deadline_ns(&mut self) -> Option<u64> {
        while let Some(Reverse((deadline_ns, id))) = self.heap.peek() {
            if is_timer_live(&self.slots, *id) {
                return Some(*deadline_ns);
            }
            self.heap.pop();
        }
        None
    }

    /// Removes one timer that is due at `now_ns`, the soonest first.
    pub fn pop_expired(&mut self, now_ns: u64) -> Option<T> {
        if self.next_deadline_ns()? > now_ns {
            return None;
        }
        let Reverse((_, id)) = self.heap.pop()?;
        self.free_slot(id)
    }

    /// Whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Removes a timer, and frees its slot; `None` if it has expired or was cancelled.
    fn free_slot(&mut self, id: TimerId) -> Option<T> {
        if !is_timer_live(&self.slots, id) {
            return None;
        }
        let (generation, timer) = &mut self.slots[id.slot as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(id.slot);
        self.live -= 1;
        timer.take()
    }
}

/// Whether the timer is still set.
fn is_timer_live<T>(slots: &[(u32, Option<T>)], id: TimerId) -> bool {
    matches!(slots.get(id.slot as usize), Some((generation, Some(_))) if *generation == id.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_expire_in_order_and_not_before_their_deadlines() {
        let mut timers = Timers::default();
        timers.insert(30, 'c');
        timers.insert(10, 'a');
        let b = timers.insert(20, 'b');
        assert_eq!(timers.next_deadline_ns(), Some(10));
        assert_eq!(timers.pop_expired(9), None);
        assert!(timers.cancel(b));
        assert!(!timers.cancel(b));
        assert_eq!(timers.pop_expired(100), Some('a'));
        assert_eq!(timers.pop_expired(100), Some('c'));
        assert_eq!(timers.pop_expired(100), None);
        assert!(timers.is_empty());
    }

    #[test]
    fn setting_and_cancelling_for_ever_costs_no_memory() {
        let mut timers = Timers::default();
        for deadline in 0..100_000 {
            let id = timers.insert(deadline, ());
            assert!(timers.cancel(id));
        }
        assert!(timers.heap.len() <= LEFTOVERS_TOLERATED + 1);
        assert_eq!(timers.slots.len(), 1);
    }

    #[test]
    fn an_expired_timer_cannot_be_cancelled_even_when_its_slot_is_reused() {
        let mut timers = Timers::default();
        let old = timers.insert(1, 'a');
        assert_eq!(timers.pop_expired(1), Some('a'));
        timers.insert(2, 'b');
        assert!(!timers.cancel(old));
        assert_eq!(timers.pop_expired(2), Some('b'));
    }
}
