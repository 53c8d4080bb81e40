//! In-flight record of a split queue.
//!
//! Each head has an entry: whether its chain is in flight, and a counter for the order of the pops.
//! The chains of the batch that is being published are also in a list, for the moment in which
//! the guest sees that they are done and their entries are not cleared yet.

use super::region::SPLIT_BYTES;
use super::{InflightRegion, RecoveredChain};
use crate::error::InflightError;

const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
// Of an entry.
const NEXT: usize = 6;
const COUNTER: usize = 8;

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
    pub fn start(
        region: InflightRegion,
        size: u16,
        used_idx: u16,
    ) -> Result<(Self, Option<Vec<RecoveredChain>>), InflightError> {
        assert!(!region.is_packed(), "the region has the queue's form");
        let had_record = region.has_record(size)?;
        let mut tracker = SplitRecord {
            region,
            counter: 0,
            last_batch_head: 0,
        };
        if had_record {
            let chains = tracker.recover(size, used_idx)?;
            return Ok((tracker, Some(chains)));
        }
        let region = &tracker.region;
        for head in 0..region.entries() {
            region.set_in_flight(region.entry::<SPLIT_BYTES>(head), false);
        }
        region.store_u16(LAST_BATCH_HEAD, 0);
        region.store_u16(USED_IDX, used_idx);
        region.validate();
        Ok((tracker, None))
    }

    fn recover(&mut self, size: u16, used_idx: u16) -> Result<Vec<RecoveredChain>, InflightError> {
        let region = &self.region;
        let recorded = region.u16(USED_IDX);
        // The guest saw the last batch, and not all of it was removed.
        let batch = used_idx.wrapping_sub(recorded);
        if batch > size {
            return Err(InflightError::UsedIndex {
                used_idx,
                recorded,
                size,
            });
        }
        let mut head = region.u16(LAST_BATCH_HEAD);
        self.last_batch_head = head;
        for _ in 0..batch {
            if head >= size {
                return Err(InflightError::OutOfRange { index: head, size });
            }
            let entry = region.entry::<SPLIT_BYTES>(head);
            region.set_in_flight(entry, false);
            head = region.u16(entry + NEXT);
        }
        region.store_u16(USED_IDX, used_idx);
        let mut heads = Vec::new();
        for head in 0..region.entries() {
            let entry = region.entry::<SPLIT_BYTES>(head);
            if !region.in_flight(entry) {
                continue;
            }
            if head >= size {
                return Err(InflightError::OutOfRange { index: head, size });
            }
            heads.push((region.u64(entry + COUNTER), head));
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
    pub fn taken(&mut self, head: u16) {
        let entry = self.region.entry::<SPLIT_BYTES>(head);
        self.region.store_u64(entry + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.region.set_in_flight(entry, true);
    }

    /// Removes chains that were popped last, in this order, and are returned to the ring. Nothing else is in flight.
    pub fn untaken(&mut self, heads: &[u16]) {
        // From the last one, since the base of the queue follows from the number of chains in flight.
        for &head in heads.iter().rev() {
            let entry = self.region.entry::<SPLIT_BYTES>(head);
            self.region.set_in_flight(entry, false);
        }
    }

    /// Prepares the publication of a batch.
    #[inline]
    pub fn link(&mut self, batch: &[u16]) {
        for &head in batch {
            let entry = self.region.entry::<SPLIT_BYTES>(head);
            self.region.store_u16(entry + NEXT, self.last_batch_head);
            self.region.store_u16(LAST_BATCH_HEAD, head);
            self.last_batch_head = head;
        }
    }

    /// Removes a batch that was published, with `used_idx` as the used index.
    #[inline]
    pub fn seen(&mut self, batch: &[u16], used_idx: u16) {
        for &head in batch {
            let entry = self.region.entry::<SPLIT_BYTES>(head);
            self.region.set_in_flight(entry, false);
        }
        self.region.store_u16(USED_IDX, used_idx);
    }
}
