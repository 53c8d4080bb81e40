//! Requests in flight, allocated when their queue starts: as many as the ring has entries.
//!
//! A slot has room for a few data segments in itself, which is where nearly all requests stay; the
//! rest goes to the slot's row of a table beside. Both are taken from the kernel as zero pages and
//! handed out last-in first-out, so that a queue only ever touches as much memory as it once had
//! requests in flight.

use libc::iovec;

/// Segments that a slot holds in itself.
const INLINE_SEGMENTS: usize = 4;

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// One request. All-zero bytes are a valid value.
pub(crate) struct Slot {
    /// Where the status byte goes.
    pub status: *mut u8,
    /// Start of the request in the disk, and bytes.
    pub offset: u64,
    pub len: u64,
    /// What the used entry says was written.
    pub written: u32,
    /// Generation of the memory map that the addresses are of.
    pub epoch: u32,
    /// The next request merged into this one, or the next free slot, plus one; 0: none.
    link: u32,
    segments: u32,
    pub head: u16,
    inline: [iovec; INLINE_SEGMENTS],
}

pub(crate) struct Slots {
    slots: Box<[Slot]>,
    /// `row` segments for each slot.
    table: Box<[iovec]>,
    row: usize,
    free: u32,
    /// Slots from here on were never used.
    fresh: u32,
    in_flight: u32,
}

// SAFETY: the addresses in the slots are plain numbers to this type.
unsafe impl Send for Slots {}

/// Zero pages of the kernel's, untouched until used.
fn zeroed<T>(count: usize) -> Box<[T]> {
    let memory = Box::new_zeroed_slice(count);
    // SAFETY: only used for `Slot` and `iovec`, for which all-zero bytes are a valid value:
    // integers and raw pointers.
    unsafe { memory.assume_init() }
}

impl Slots {
    /// `count` slots of up to `max_segments` data segments each.
    pub fn new(count: u16, max_segments: u32) -> Self {
        let row = max_segments as usize;
        Slots {
            slots: zeroed(usize::from(count)),
            table: zeroed(usize::from(count) * row),
            row,
            free: NONE,
            fresh: 0,
            in_flight: 0,
        }
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How many slots there are.
    pub fn count(&self) -> u16 {
        // Made from a u16.
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// Segments that a request may have.
    pub fn max_segments(&self) -> usize {
        self.row
    }

    /// A slot for a request; `None`: all are in flight.
    pub fn take(&mut self) -> Option<u32> {
        let slot = if self.free != NONE {
            let slot = self.free;
            self.free = self.link(slot);
            slot
        } else if (self.fresh as usize) < self.slots.len() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.in_flight += 1;
        let taken = self.get_mut(slot);
        taken.link = 0;
        taken.segments = 0;
        Some(slot)
    }

    pub fn give_back(&mut self, slot: u32) {
        let free = self.free;
        self.set_link(slot, free);
        self.free = slot;
        self.in_flight -= 1;
    }

    pub fn get(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The request merged behind this one.
    pub fn link(&self, slot: u32) -> u32 {
        self.get(slot).link.wrapping_sub(1)
    }

    pub fn set_link(&mut self, slot: u32, next: u32) {
        self.get_mut(slot).link = next.wrapping_add(1);
    }

    /// How many segments a request has.
    pub fn segment_count(&self, slot: u32) -> usize {
        self.get(slot).segments as usize
    }

    /// The segments of a request.
    pub fn segments(&mut self, slot: u32) -> &mut [iovec] {
        let count = self.segment_count(slot);
        if count <= INLINE_SEGMENTS {
            &mut self.get_mut(slot).inline[..count]
        } else {
            let start = slot as usize * self.row;
            &mut self.table[start..start + count]
        }
    }

    /// Adds a segment; false: there are too many.
    pub fn push_segment(&mut self, slot: u32, segment: iovec) -> bool {
        let count = self.segment_count(slot);
        if count >= self.row {
            return false;
        }
        let start = slot as usize * self.row;
        if count == INLINE_SEGMENTS {
            let inline = self.get(slot).inline;
            self.table[start..start + count].copy_from_slice(&inline);
        }
        if count < INLINE_SEGMENTS {
            self.get_mut(slot).inline[count] = segment;
        } else {
            self.table[start + count] = segment;
        }
        self.get_mut(slot).segments += 1;
        true
    }

    /// Adds the segments of `from` behind those of `to`; there is room for them.
    pub fn append_segments(&mut self, to: u32, from: u32) {
        for index in 0..self.segment_count(from) {
            let segment = self.segments(from)[index];
            let fits = self.push_segment(to, segment);
            debug_assert!(fits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(address: usize) -> iovec {
        iovec {
            iov_base: std::ptr::without_provenance_mut(address),
            iov_len: address,
        }
    }

    #[test]
    fn segments_move_to_the_table_when_they_outgrow_the_slot() {
        let mut slots = Slots::new(4, 10);
        for slot in [slots.take().unwrap(), slots.take().unwrap()] {
            for address in 1..=10 {
                assert!(slots.push_segment(slot, segment(address)));
                let addresses: Vec<_> = slots.segments(slot).iter().map(|s| s.iov_len).collect();
                assert_eq!(addresses, (1..=address).collect::<Vec<_>>());
            }
            assert!(!slots.push_segment(slot, segment(11)));
        }
    }

    #[test]
    fn slots_are_reused_last_in_first_out_and_end() {
        let mut slots = Slots::new(2, 1);
        let (a, b) = (slots.take().unwrap(), slots.take().unwrap());
        assert_ne!(a, b);
        assert_eq!(slots.take(), None);
        slots.give_back(a);
        slots.give_back(b);
        assert_eq!(
            (slots.take(), slots.take(), slots.take()),
            (Some(b), Some(a), None)
        );
        assert_eq!(slots.in_flight(), 2);
    }
}
