//! In-flight record of a packed queue: written at each pop and publication, and read after a crash.
//!
//! Used entries overwrite descriptors of chains that are still in flight, so the record has copies of all
//! descriptors of each. Entries are allocated from a free list; the entries of a chain stay
//! linked as they were in that list. The free list and the used position change when a batch is published, and are stored twice: as
//! they will be, and as they were. The descriptor at the old position decides which of them counts: it shows whether the guest sees the
//! batch.
//!
//! This process also has its own copy of the links; those in the region are only written.

use super::region::PACKED_ENTRY_BYTES;
use super::{InflightRegion, RecoveredChain};
use crate::error::InflightError;
use crate::packed::{PackedDescriptor, PackedPosition, PackedView};

/// Version, number of entries, head of the free list, and the old one.
const LISTS_OFFSET: usize = 8;
/// Used position and old one, then their wrap counters.
const POSITIONS_OFFSET: usize = 16;
// Of an entry. Its first word: in flight, next, last, number of descriptors.
const NEXT_OFFSET: usize = 2;
const COUNTER_OFFSET: usize = 8;
/// Buffer ID, flags and length.
const REST_OFFSET: usize = 16;
const ADDR_OFFSET: usize = 24;

/// Own copy of an entry's links.
#[derive(Clone, Copy, Debug, Default)]
struct EntryLinks {
    /// The next entry, in the free list or in its chain.
    next: u16,
    /// In a head: the last entry of its chain.
    last: u16,
    /// In a head: the driver's buffer ID of its chain.
    id: u16,
    /// In a head: its chain was in flight when this process started the queue.
    recovered: bool,
}

/// Writer of the record.
#[derive(Debug)]
pub(crate) struct PackedRecord {
    region: InflightRegion,
    entries: Box<[EntryLinks]>,
    /// The first free entry; the number of entries: none.
    free: u16,
    used: PackedPosition,
    /// Counter for the next chain.
    counter: u64,
}

impl PackedRecord {
    /// Continues the record in the region, or begins a new one, for a queue whose used position is `used`.
    /// Also returns the chains in flight, in the order in which they were popped; `None` for a
    /// new record.
    pub fn open_or_create(
        region: InflightRegion,
        ring: &PackedView,
        used: PackedPosition,
    ) -> Result<(Self, Option<Vec<RecoveredChain>>), InflightError> {
        assert!(region.is_packed(), "the region has the queue's form");
        let had_record = region.has_valid_record(ring.size())?;
        let entries = vec![EntryLinks::default(); region.entry_count().into()].into();
        let mut record = PackedRecord {
            region,
            entries,
            free: 0,
            used,
            counter: 0,
        };
        if had_record {
            let chains = record.finish_publication_and_recover_chains(ring)?;
            return Ok((record, Some(chains)));
        }
        for entry in 0..record.region.entry_count() {
            record
                .region
                .set_in_flight(record.entry_offset(entry), false);
        }
        record.store_used_positions(used, used);
        // The record is valid with the last store.
        record.rebuild_free_list(&vec![true; record.entries.len()]);
        Ok((record, None))
    }

    /// The position of the guest's next used entry.
    pub fn used_position(&self) -> PackedPosition {
        self.used
    }

    /// Reads the record of an earlier process, and completes the publication in which it may have ended. Returns the
    /// chains in flight in the order of their pops.
    fn finish_publication_and_recover_chains(
        &mut self,
        ring: &PackedView,
    ) -> Result<Vec<RecoveredChain>, InflightError> {
        let (entries, size) = (self.region.entry_count(), ring.size());
        let [_, _, free, mut old_free] = split_u16_fields(self.region.load_u64(LISTS_OFFSET));
        let [used, old_used, wraps, _] = split_u16_fields(self.region.load_u64(POSITIONS_OFFSET));
        let [wrap, old_wrap] = wraps.to_le_bytes();
        let position = |index, wrap| {
            let wrap = wrap != 0;
            (index < size)
                .then_some(PackedPosition { index, wrap })
                .ok_or(InflightError::OutOfRange { index, size })
        };
        let (used, old) = (position(used, wrap)?, position(old_used, old_wrap)?);
        self.used = old;
        if used != old && !old.is_available(ring.flags(old.index)) {
            // The guest sees the last batch: the new state counts.
            (self.used, old_free) = (used, free);
        }
        // Free entries are not in flight. A broken list is noticed below.
        let mut at = old_free;
        for _ in 0..entries {
            if at >= entries {
                break;
            }
            let entry = self.entry_offset(at);
            self.region.set_in_flight(entry, false);
            at = self.region.load_u16(entry + NEXT_OFFSET);
        }
        let mut is_free = vec![true; entries.into()];
        let mut chains = Vec::new();
        let mut left = size;
        for entry in 0..entries {
            if !self.region.is_in_flight(self.entry_offset(entry)) {
                continue;
            }
            let counter = self
                .region
                .load_u64(self.entry_offset(entry) + COUNTER_OFFSET);
            let chain = self.recover_chain(entry, &mut left, &mut is_free)?;
            chains.push((counter, chain));
        }
        self.store_free_list_heads(old_free, old_free);
        self.store_used_positions(self.used, self.used);
        self.rebuild_free_list(&is_free);
        chains.sort_unstable_by_key(|(counter, chain)| (*counter, chain.entry));
        self.counter = chains.last().map_or(0, |(last, _)| last.wrapping_add(1));
        Ok(chains.into_iter().map(|(_, chain)| chain).collect())
    }

    /// Reads the chain whose record begins at `entry`; `left` more descriptors may be in flight.
    fn recover_chain(
        &mut self,
        entry: u16,
        left: &mut u16,
        is_free: &mut [bool],
    ) -> Result<RecoveredChain, InflightError> {
        let size = self.region.entry_count();
        let [_, _, _, count] = split_u16_fields(self.region.load_u64(self.entry_offset(entry)));
        let error = InflightError::Chain {
            entry,
            descriptors: count,
        };
        *left = left
            .checked_sub(count)
            .filter(|_| count > 0)
            .ok_or_else(|| error.clone())?;
        let mut descriptors = Vec::new();
        let (mut at, mut last) = (entry, entry);
        for _ in 0..count {
            let free = is_free
                .get_mut(usize::from(at))
                .ok_or(InflightError::OutOfRange { index: at, size })?;
            if !std::mem::take(free) {
                return Err(error);
            }
            let offset = self.entry_offset(at);
            let rest = self.region.load_u64(offset + REST_OFFSET);
            let [id, flags, ..] = split_u16_fields(rest);
            descriptors.push(PackedDescriptor {
                addr: self.region.load_u64(offset + ADDR_OFFSET),
                len: (rest >> 32) as u32,
                id,
                flags,
            });
            let next = self.region.load_u16(offset + NEXT_OFFSET);
            self.entries[usize::from(at)].next = next;
            (last, at) = (at, next);
        }
        let id = descriptors.last().map_or(0, |last| last.id);
        let head = &mut self.entries[usize::from(entry)];
        (head.last, head.id, head.recovered) = (last, id, true);
        Ok(RecoveredChain { entry, descriptors })
    }

    /// Offset of an entry.
    #[inline]
    fn entry_offset(&self, entry: u16) -> usize {
        self.region.entry_offset::<PACKED_ENTRY_BYTES>(entry)
    }

    /// Rebuilds the free list. Until it is complete, the old one leads to free entries only.
    fn rebuild_free_list(&mut self, is_free: &[bool]) {
        let end = self.region.entry_count();
        self.free = end;
        for entry in (0..end).rev().filter(|entry| is_free[usize::from(*entry)]) {
            self.set_next(entry, self.free);
            self.free = entry;
        }
        self.store_free_list_heads(self.free, self.free);
    }

    /// Records a chain of `descriptors` descriptors that was popped at `at` and not processed yet. Returns its first entry.
    #[inline]
    pub fn record_popped(
        &mut self,
        ring: &PackedView,
        mut at: PackedPosition,
        descriptors: u16,
    ) -> u16 {
        let head = self.free;
        let (mut entry, mut last, mut id) = (head, head, 0);
        for _ in 0..descriptors {
            let offset = self.entry_offset(entry);
            let descriptor = ring.descriptor(at.index);
            id = descriptor.id;
            let rest =
                u64::from(id) | u64::from(descriptor.flags) << 16 | u64::from(descriptor.len) << 32;
            self.region.store_u64(offset + REST_OFFSET, rest);
            self.region.store_u64(offset + ADDR_OFFSET, descriptor.addr);
            at = at.advance(1, ring.size());
            (last, entry) = (entry, self.entries[usize::from(entry)].next);
        }
        let offset = self.entry_offset(head);
        let first = &mut self.entries[usize::from(head)];
        (first.last, first.id, first.recovered) = (last, id, false);
        self.region.store_u64(offset + COUNTER_OFFSET, self.counter);
        self.counter = self.counter.wrapping_add(1);
        let word = join_u16_fields([1, first.next, last, descriptors]);
        self.region.store_u64(offset, word);
        // Until here the entry is free.
        self.free = entry;
        self.store_free_list_heads(entry, entry);
        head
    }

    /// The driver's buffer ID of a chain.
    #[inline]
    pub fn buffer_id(&self, entry: u16) -> u16 {
        self.entries[usize::from(entry)].id
    }

    /// Whether a chain was in flight when this process started the queue. The process that popped it may have overwritten its
    /// descriptors with used entries that the guest has not seen.
    pub fn was_recovered(&self, entry: u16) -> bool {
        self.entries[usize::from(entry)].recovered
    }

    /// Removes chains that were popped last and are returned to the ring.
    pub fn remove_unpopped(&mut self, heads: &[u16]) {
        self.prepend_to_free_list(heads);
        // All of them at once: free entries are not in flight.
        self.store_free_list_heads(self.free, self.free);
        for &head in heads {
            self.region.set_in_flight(self.entry_offset(head), false);
        }
    }

    /// Puts the entries of chains at the beginning of the free list, whose head is not stored yet.
    #[inline]
    fn prepend_to_free_list(&mut self, heads: &[u16]) {
        for &head in heads {
            let last = self.entries[usize::from(head)].last;
            self.set_next(last, self.free);
            self.free = head;
        }
    }

    /// Prepares the publication of a batch: frees its entries, and stores the old state beside the new one.
    /// Afterwards the guest's next used entry is at `used`.
    #[inline]
    pub fn record_batch_before_publish(&mut self, batch: &[u16], used: PackedPosition) {
        let old = self.free;
        self.prepend_to_free_list(batch);
        self.store_free_list_heads(self.free, old);
        self.store_used_positions(used, self.used);
        self.used = used;
    }

    /// Removes a batch that was published.
    #[inline]
    pub fn remove_published(&mut self, batch: &[u16]) {
        for &head in batch {
            self.region.set_in_flight(self.entry_offset(head), false);
        }
        self.store_free_list_heads(self.free, self.free);
        // The last step: as long as the positions differ, the ring decides.
        self.store_used_positions(self.used, self.used);
    }

    /// Links an entry to its next one, in the region and in our copy.
    #[inline]
    fn set_next(&mut self, entry: u16, next: u16) {
        self.entries[usize::from(entry)].next = next;
        self.region
            .store_u16(self.entry_offset(entry) + NEXT_OFFSET, next);
    }

    /// Stores the heads of the free list: as it will be, and as it was.
    #[inline]
    fn store_free_list_heads(&self, free: u16, old: u16) {
        let lists = u64::from(free) << 32 | u64::from(old) << 48;
        let form = self.region.version_and_entries_to_store();
        self.region.store_u64(LISTS_OFFSET, form | lists);
    }

    /// Stores the used positions: as it will be, and as it was.
    #[inline]
    fn store_used_positions(&self, used: PackedPosition, old: PackedPosition) {
        let wraps = u16::from_le_bytes([used.wrap.into(), old.wrap.into()]);
        let positions = join_u16_fields([used.index, old.index, wraps, 0]);
        self.region.store_u64(POSITIONS_OFFSET, positions);
    }
}

/// The four fields of a word, in the order of their addresses.
fn split_u16_fields(word: u64) -> [u16; 4] {
    [0, 16, 32, 48].map(|bit| (word >> bit & 0xffff) as u16)
}

/// The word of four fields.
#[inline]
fn join_u16_fields([a, b, c, d]: [u16; 4]) -> u64 {
    u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
}
