//! In-flight record of a split queue: written at each pop and publication, and read after a crash.
//!
//! Each head has an entry: whether its chain is in flight, and a counter for the order of the pops.
//! The chains of the batch that is being published are also in a list, for the moment in which
//! the guest sees that they are done and their entries are not cleared yet.

use super::region::SPLIT_ENTRY_BYTES;
use super::{InflightRegion, RecoveredChain};
use crate::error::InflightError;

const LAST_BATCH_HEAD_OFFSET: usize = 12;
const USED_IDX_OFFSET: usize = 14;
// Of an entry.
const NEXT_OFFSET: usize = 6;
const COUNTER_OFFSET: usize = 8;

/// Writer of the record.
#[derive(Debug)]
pub(crate) struct SplitRecord {
    region: InflightRegion,
    /// Counter for the next chain.
    counter: u64,
    last_batch_head: u16,
}

impl SplitRecord {
    /// Continues the record in the region, or begins a new one, for a queue of `size` whose used index is
    /// `used_idx`. Also returns the chains in flight, in the order in which they were popped; `None`
    /// for a new record.
    pub fn open_or_create(
        region: InflightRegion,
        size: u16,
        used_idx: u16,
    ) -> Result<(Self, Option<Vec<RecoveredChain>>), InflightError> {
        assert!(!region.is_packed(), "the region has the queue's form");
        let had_record = region.has_valid_record(size)?;
        let mut record = SplitRecord {
            region,
            counter: 0,
            last_batch_head: 0,
        };
        if had_record {
            let chains = record.finish_publication_and_recover_chains(size, used_idx)?;
            return Ok((record, Some(chains)));
        }
        let region = &record.region;
        for head in 0..region.entry_count() {
            region.set_in_flight(region.entry_offset::<SPLIT_ENTRY_BYTES>(head), false);
        }
        region.store_u16(LAST_BATCH_HEAD_OFFSET, 0);
        region.store_u16(USED_IDX_OFFSET, used_idx);
        region.mark_valid();
        Ok((record, None))
    }

    /// Reads the record of an earlier process, and completes the publication in which it may have ended. Returns the
    /// chains in flight in the order of their pops.
    fn finish_publication_and_recover_chains(
        &mut self,
        size: u16,
        used_idx: u16,
    ) -> Result<Vec<RecoveredChain>, InflightError> {
        let region = &self.region;
        let recorded = region.load_u16(USED_IDX_OFFSET);
        // The guest saw the last batch, and not all of it was removed.
        let batch = used_idx.wrapping_sub(recorded);
        if batch > size {
            return Err(InflightError::UsedIndex {
                used_idx,
                recorded,
                size,
            });
        }
        let mut head = region.load_u16(LAST_BATCH_HEAD_OFFSET);
        self.last_batch_head = head;
        for _ in 0..batch {
            if head >= size {
                return Err(InflightError::OutOfRange { index: head, size });
            }
            let entry = region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
            region.set_in_flight(entry, false);
            head = region.load_u16(entry + NEXT_OFFSET);
        }
        region.store_u16(USED_IDX_OFFSET, used_idx);
        let mut heads = Vec::new();
        for head in 0..region.entry_count() {
            let entry = region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
            if !region.is_in_flight(entry) {
                continue;
            }
            if head >= size {
                return Err(InflightError::OutOfRange { index: head, size });
            }
            heads.push((region.load_u64(entry + COUNTER_OFFSET), head));
        }
        heads.sort_unstable();
        self.counter = heads
            .last()
            .map_or(0, |(counter, _)| counter.wrapping_add(1));
        let chain = |(_, entry)| RecoveredChain {
            entry,
            descriptors: Vec::new(),
        };
        Ok(heads.into_iter().map(chain).collect())
    }

    /// Records a chain that was popped and not processed yet.
    #[inline]
    pub fn record_popped(&mut self, head: u16) {
        let entry = self.region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
        self.region.store_u64(entry + COUNTER_OFFSET, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.region.set_in_flight(entry, true);
    }

    /// Removes chains that were popped last, in this order, and are returned to the ring. Nothing else is in flight.
    pub fn remove_unpopped(&mut self, heads: &[u16]) {
        // From the last one, since the base of the queue follows from the number of chains in flight.
        for &head in heads.iter().rev() {
            let entry = self.region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
            self.region.set_in_flight(entry, false);
        }
    }

    /// Prepares the publication of a batch: puts its chains in the list of the last batch.
    #[inline]
    pub fn record_batch_before_publish(&mut self, batch: &[u16]) {
        for &head in batch {
            let entry = self.region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
            self.region
                .store_u16(entry + NEXT_OFFSET, self.last_batch_head);
            self.region.store_u16(LAST_BATCH_HEAD_OFFSET, head);
            self.last_batch_head = head;
        }
    }

    /// Removes a batch from the record that was published, with `used_idx` as the used index.
    #[inline]
    pub fn remove_published(&mut self, batch: &[u16], used_idx: u16) {
        for &head in batch {
            let entry = self.region.entry_offset::<SPLIT_ENTRY_BYTES>(head);
            self.region.set_in_flight(entry, false);
        }
        self.region.store_u16(USED_IDX_OFFSET, used_idx);
    }
}
