//! The table of an engine's request records, allocated once; a record is found by the index that the kernel returns.
//!
//! The kernel returns a record's index with its completion, so finding the request is an array access. Free records are
//! reused last in, first out: the ones used last are in the cache. Records that were never needed are never written, so an
//! idle engine does not touch its memory.

/// A request, and whether the kernel has it.
#[derive(Clone, Copy, Debug)]
struct Slot<R> {
    request: R,
    /// The kernel has the request; events for other slots are ignored.
    in_flight: bool,
}

/// A fixed number of records, identified by their index.
#[derive(Debug)]
pub(crate) struct Slots<R> {
    /// Has the capacity for `max` records from the beginning, so that they do not move.
    slots: Vec<Slot<R>>,
    free: Vec<u32>,
    max: u32,
}

impl<R> Slots<R> {
    /// An empty table with room for `max` records.
    pub(crate) fn new(max: u32) -> Self {
        let capacity = max as usize;
        Self {
            slots: Vec::with_capacity(capacity),
            free: Vec::with_capacity(capacity),
            max,
        }
    }

    /// Number of records that can still be taken.
    pub(crate) fn room(&self) -> usize {
        self.max as usize - self.slots.len() + self.free.len()
    }

    /// Takes a record for the request that `make` builds for its index; `None` if all are taken.
    #[inline(always)]
    pub(crate) fn take(&mut self, make: impl FnOnce(u32) -> R) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Slot {
                request: make(index),
                in_flight: false,
            };
            return Some(index);
        }
        let index = u32::try_from(self.slots.len())
            .ok()
            .filter(|index| *index < self.max)?;
        self.slots.push(Slot {
            request: make(index),
            in_flight: false,
        });
        Some(index)
    }

    /// Frees a record, and returns its request.
    pub(crate) fn release(&mut self, index: u32) -> &R {
        let slot = &mut self.slots[index as usize];
        slot.in_flight = false;
        self.free.push(index);
        &slot.request
    }

    /// The request in a record.
    pub(crate) fn request_mut(&mut self, index: u32) -> &mut R {
        &mut self.slots[index as usize].request
    }

    /// Whether the kernel has a request for which `like` is true.
    pub(crate) fn any_in_flight(&self, mut like: impl FnMut(&R) -> bool) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.in_flight && like(&slot.request))
    }

    /// Notes that the kernel has the request of a record.
    pub(crate) fn set_in_flight(&mut self, index: u32) {
        self.slots[index as usize].in_flight = true;
    }

    /// Notes that the kernel has completed a request, and returns its record, which is not freed yet. `data` is the event's; `None` if
    /// the kernel does not have such a request.
    pub(crate) fn try_end_in_flight(&mut self, data: u64) -> Option<(u32, &mut R)> {
        let index = u32::try_from(data).ok()?;
        let slot = self
            .slots
            .get_mut(index as usize)
            .filter(|slot| slot.in_flight)?;
        slot.in_flight = false;
        Some((index, &mut slot.request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slot: u32) -> u64 {
        100 + u64::from(slot)
    }

    #[test]
    fn records_do_not_move() {
        let mut slots = Slots::new(64);
        let first = slots.take(request).unwrap();
        let address = &raw const *slots.request_mut(first);
        while slots.take(request).is_some() {}
        assert_eq!(&raw const *slots.request_mut(first), address);
    }

    #[test]
    fn only_requests_in_flight_can_complete() {
        let mut slots = Slots::new(2);
        let slot = slots.take(request).unwrap();
        assert!(
            slots.try_end_in_flight(u64::from(slot)).is_none(),
            "not submitted yet"
        );
        slots.set_in_flight(slot);
        for wrong in [1, 2, u64::from(u32::MAX), u64::MAX] {
            assert!(slots.try_end_in_flight(wrong).is_none(), "{wrong}");
        }
        assert_eq!(*slots.try_end_in_flight(u64::from(slot)).unwrap().1, 100);
        assert!(
            slots.try_end_in_flight(u64::from(slot)).is_none(),
            "completed twice"
        );
    }
}
