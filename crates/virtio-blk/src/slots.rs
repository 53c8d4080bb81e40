//! Slots of requests in flight, as many as the ring has entries.
//!
//! A slot has room for a few data segments, enough for nearly all requests; more of them go to the slot's row of a separate
//! table. A request of one segment is one cache line. Slots are allocated last-in first-out, so that a queue touches only as much
//! memory as it ever had requests in flight.

use libc::iovec;
use telemetry::queue::AdmitTimeAndKind;
use telemetry::queue::zero_pages::{ZeroPages, Zeroable};
use virtqueue::MAX_QUEUE_SIZE;
use virtqueue::{ChainId, MAX_SEGMENTS};

/// Segments in a slot itself: as many as fit its two cache lines.
const INLINE_SEGMENTS: usize = 5;

/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// One request.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Address of the status byte.
    pub status: *mut u8,
    /// Start of the request in the disk, and bytes.
    pub offset: u64,
    pub len: u64,
    /// When it was admitted, and the kind that it counts as.
    pub admitted: AdmitTimeAndKind,
    /// Written bytes in its used entry.
    pub used_len: u32,
    /// Its chain.
    pub id: ChainId,
    /// The next request merged into this one, or the next free slot, plus one; 0: none.
    link: u16,
    segments: u16,
    inline: [iovec; INLINE_SEGMENTS],
}

const _: () = assert!(size_of::<Slot>() == 128);
const _: () = assert!(std::mem::offset_of!(Slot, inline) + size_of::<iovec>() == 64);
const _: () = assert!(MAX_QUEUE_SIZE < u16::MAX && MAX_SEGMENTS < u16::MAX as usize);

// SAFETY: integers and raw pointers.
unsafe impl Zeroable for Slot {}

impl Slot {
    /// Sets whether a request without data may deallocate the space that it zeroes.
    pub fn set_may_unmap(&mut self, unmap: bool) {
        self.inline[0].iov_len = usize::from(unmap);
    }

    /// Whether a request without data may deallocate the space that it zeroes.
    pub fn may_unmap(&self) -> bool {
        self.segments == 0 && self.inline[0].iov_len != 0
    }
}

/// The slots of one queue.
pub(crate) struct Slots {
    slots: ZeroPages<Slot>,
    /// `max_segments` segments for each slot, for requests whose segments do not fit the slot itself.
    overflow: ZeroPages<iovec>,
    max_segments: usize,
    /// The first free slot, plus one; 0: none.
    first_free: u16,
    /// Slots from here on were never used.
    first_unused: u32,
    in_flight: u32,
}

// SAFETY: the addresses in the slots are plain numbers to this type, and its pages have no other
// owner.
unsafe impl Send for Slots {}

impl Slots {
    /// `count` slots of up to `max_segments` data segments each.
    pub fn new(count: u16, max_segments: u32) -> Self {
        let max_segments = max_segments as usize;
        Slots {
            slots: ZeroPages::new(usize::from(count)),
            overflow: ZeroPages::new(usize::from(count) * max_segments),
            max_segments,
            first_free: 0,
            first_unused: 0,
            in_flight: 0,
        }
    }

    /// Number of slots in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The slots in flight, in no order.
    pub fn in_flight_slots(&self) -> impl Iterator<Item = u32> {
        let mut free = vec![false; self.first_unused as usize];
        let mut next = self.first_free;
        while next != 0 {
            let slot = decode_slot_link(next);
            free[slot as usize] = true;
            next = self.get(slot).link;
        }
        (0..self.first_unused).filter(move |slot| !free[*slot as usize])
    }

    /// Number of slots.
    pub fn slot_count(&self) -> u16 {
        // Made from a u16.
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    /// Maximal number of segments of a request.
    pub fn max_segments(&self) -> usize {
        self.max_segments
    }

    /// Allocates a slot for a request with these data segments; `None`: all are in flight. The caller has checked
    /// that there are at most [`max_segments`](Self::max_segments), and fills in the rest.
    #[inline(always)]
    pub fn allocate_with_segments(&mut self, data: &[iovec]) -> Option<(u32, &mut Slot)> {
        let reused = self.first_free != 0;
        let index = if reused {
            decode_slot_link(self.first_free)
        } else {
            self.first_unused
        };
        let slot = self.slots.get_mut(index as usize)?;
        if reused {
            self.first_free = slot.link;
        } else {
            self.first_unused += 1;
        }
        self.in_flight += 1;
        slot.link = 0;
        slot.segments = segment_count_as_u16(data.len());
        match data {
            [] => {}
            [only] => slot.inline[0] = *only,
            [..] if data.len() <= INLINE_SEGMENTS => {
                slot.inline[..data.len()].copy_from_slice(data)
            }
            [..] => {
                let start = index as usize * self.max_segments;
                self.overflow[start..start + data.len()].copy_from_slice(data);
            }
        }
        Some((index, slot))
    }

    /// Releases a slot, whose content stays until it is allocated again.
    #[inline]
    pub fn release(&mut self, index: u32) -> ReleasedSlot<'_> {
        let slot = &mut self.slots[index as usize];
        let next = decode_slot_link(slot.link);
        slot.link = self.first_free;
        self.first_free = encode_slot_link(index);
        self.in_flight -= 1;
        ReleasedSlot { slot, next }
    }

    #[inline]
    pub fn get(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The next request that was merged into the same one, or [`NO_SLOT`].
    pub fn next_merged(&self, slot: u32) -> u32 {
        decode_slot_link(self.get(slot).link)
    }

    /// Sets the next request that was merged into the same one.
    pub fn set_next_merged(&mut self, slot: u32, next: u32) {
        self.get_mut(slot).link = encode_slot_link(next);
    }

    /// Number of segments of a request.
    pub fn segment_count(&self, slot: u32) -> usize {
        self.get(slot).segments.into()
    }

    /// The offset, the length and the segments of a request.
    #[inline]
    pub fn range_and_segments(&mut self, index: u32) -> (u64, u64, &mut [iovec]) {
        let slot = &mut self.slots[index as usize];
        let count = usize::from(slot.segments);
        let (offset, len) = (slot.offset, slot.len);
        let segments = if count <= INLINE_SEGMENTS {
            &mut slot.inline[..count]
        } else {
            let start = index as usize * self.max_segments;
            &mut self.overflow[start..start + count]
        };
        (offset, len, segments)
    }

    /// Merges the request in slot `from` into the one before it: its segments are appended to those of `leader`, which have
    /// room for them, and its bytes are added.
    pub fn append_segments_to_leader(&mut self, leader: u32, from: u32) {
        let (have, more) = (self.segment_count(leader), self.segment_count(from));
        let (total, max_segments) = (have + more, self.max_segments);
        debug_assert!(total <= max_segments);
        let start = leader as usize * max_segments;
        if have <= INLINE_SEGMENTS && total > INLINE_SEGMENTS {
            let inline = self.get(leader).inline;
            self.overflow[start..start + have].copy_from_slice(&inline[..have]);
        }
        for index in 0..more {
            let (_, _, segments) = self.range_and_segments(from);
            let segment = segments[index];
            if total <= INLINE_SEGMENTS {
                self.get_mut(leader).inline[have + index] = segment;
            } else {
                self.overflow[start + have + index] = segment;
            }
        }
        let len = self.get(from).len;
        let leader = self.get_mut(leader);
        leader.len += len;
        leader.segments += segment_count_as_u16(more);
    }
}

/// A slot's index as a link, [`NO_SLOT`] as 0.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "there are fewer slots than 2^16, and NONE becomes 0"
)]
fn encode_slot_link(slot: u32) -> u16 {
    slot.wrapping_add(1) as u16
}

/// The slot that a link leads to.
#[inline(always)]
fn decode_slot_link(link: u16) -> u32 {
    u32::from(link).wrapping_sub(1)
}

/// A number of segments.
#[inline(always)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "a request has at most as many as a chain, which are fewer than 2^16"
)]
fn segment_count_as_u16(segments: usize) -> u16 {
    debug_assert!(segments <= MAX_SEGMENTS);
    segments as u16
}

/// A request that has left its slot.
pub(crate) struct ReleasedSlot<'a> {
    pub slot: &'a Slot,
    /// The next request that was merged into the same one, or [`NO_SLOT`].
    pub next: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(lengths: std::ops::RangeInclusive<usize>) -> Vec<iovec> {
        lengths
            .map(|iov_len| iovec {
                iov_base: std::ptr::without_provenance_mut(iov_len),
                iov_len,
            })
            .collect()
    }

    fn lengths(slots: &mut Slots, slot: u32) -> Vec<usize> {
        let (_, _, segments) = slots.range_and_segments(slot);
        segments.iter().map(|segment| segment.iov_len).collect()
    }

    #[test]
    fn a_merged_request_has_the_segments_of_all_its_parts() {
        for have in 1..=10 {
            for more in 1..=20 - have {
                let mut slots = Slots::new(3, 20);
                // The merged requests are in other rows than the first.
                slots.allocate_with_segments(&segments(1..=20)).unwrap();
                let (leader, slot) = slots.allocate_with_segments(&segments(1..=have)).unwrap();
                slot.len = 100;
                let (next, slot) = slots
                    .allocate_with_segments(&segments(have + 1..=have + more))
                    .unwrap();
                slot.len = 10;
                slots.append_segments_to_leader(leader, next);
                let expected: Vec<_> = (1..=have + more).collect();
                assert_eq!(lengths(&mut slots, leader), expected, "{have} + {more}");
                assert_eq!(slots.get(leader).len, 110);
                assert_eq!(lengths(&mut slots, 0), (1..=20).collect::<Vec<_>>());
            }
        }
    }
}
