//! In-flight recorder of a queue, split or packed: records chains when they are popped, removes them when they are published, and
//! after a crash pops those again that an earlier process left in the record.

use super::{InflightRegion, PackedRecord, RecoveredChain, SplitRecord};
use crate::any_ring::AnyRing;
use crate::chain::{Chain, ChainId};
use crate::error::RingError;
use crate::layout::{RingFeatures, RingLayout};
use crate::memory::GuestMemory;
use crate::packed::{PackedPosition, PackedRing};
use crate::split::SplitRing;

/// The record, in the format of its queue.
#[derive(Debug)]
enum InflightRecord {
    Split(SplitRecord),
    Packed(PackedRecord),
}

/// Records the chains that a queue has in flight. They are identified by their entries in the record.
#[derive(Debug)]
pub(crate) struct InflightRecorder {
    record: InflightRecord,
    /// Chains to pop again, the first one last.
    recovered: Vec<RecoveredChain>,
    /// Entries of chains that were pushed and are not published.
    batch: Vec<u16>,
    /// Whether the ring is not popped any more.
    ring_is_finished: bool,
}

impl InflightRecorder {
    /// Starts a ring and its record, which continues the one in the region.
    pub fn start_ring_and_record(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
        region: InflightRegion,
    ) -> Result<(AnyRing, InflightRecorder), RingError> {
        let (ring, record, mut recovered) = if features.packed {
            // A front-end that does not know where the queue had stopped passes any base.
            let base = match region.has_record() {
                true => PackedPosition::START.to_bits(),
                false => base,
            };
            let mut ring = PackedRing::new(memory, layout, features, base)?;
            let start =
                PackedRecord::open_or_create(region, ring.view(), ring.next_used_position())?;
            let (record, recovered) = start;
            if let Some(chains) = &recovered {
                let taken = chains.iter().map(|chain| chain.descriptors.len()).sum();
                ring.restore_position_and_flags(
                    record.used_position(),
                    count_as_u16_or(taken, layout.size),
                );
            }
            (
                AnyRing::Packed(ring),
                InflightRecord::Packed(record),
                recovered,
            )
        } else {
            let mut ring = SplitRing::new(memory, layout, features, base)?;
            let start = SplitRecord::open_or_create(region, layout.size, ring.published_used())?;
            let (record, recovered) = start;
            if let Some(chains) = &recovered {
                ring.resume_behind_in_flight(count_as_u16_or(chains.len(), layout.size));
            }
            (
                AnyRing::Split(ring),
                InflightRecord::Split(record),
                recovered,
            )
        };
        if let Some(chains) = &mut recovered {
            chains.reverse();
        }
        let recorder = InflightRecorder {
            record,
            recovered: recovered.unwrap_or_default(),
            batch: Vec::with_capacity(layout.size.into()),
            ring_is_finished: false,
        };
        Ok((ring, recorder))
    }

    /// Pops a recovered chain, if there is one, or the next of the ring, which is recorded before it is returned.
    pub fn pop_recovered_or_next(
        &mut self,
        ring: &mut AnyRing,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        if let Some(recovered) = self.recovered.last() {
            ring.read_recovered_chain(memory, recovered.entry, &recovered.descriptors, chain)?;
            let id = ChainId {
                id: recovered.entry,
                // As many as fit the ring.
                descriptors: count_as_u16_or(recovered.descriptors.len(), u16::MAX),
            };
            self.recovered.pop();
            return Ok(Some(id));
        }
        if self.ring_is_finished {
            return Ok(None);
        }
        let at = ring.next_avail();
        let Some(id) = ring.pop(memory, chain)? else {
            return Ok(None);
        };
        Ok(Some(self.record_popped_and_map_id(ring, at, id)))
    }

    /// Records a chain that was popped at `at`. Returns its identifier from now on.
    fn record_popped_and_map_id(&mut self, ring: &AnyRing, at: u16, id: ChainId) -> ChainId {
        match (&mut self.record, ring) {
            (InflightRecord::Split(record), _) => {
                record.record_popped(id.id);
                id
            }
            (InflightRecord::Packed(record), AnyRing::Packed(ring)) => ChainId {
                id: record.record_popped(
                    ring.view(),
                    PackedPosition::from_bits(at),
                    id.descriptors,
                ),
                ..id
            },
            (InflightRecord::Packed(_), AnyRing::Split(_)) => {
                unreachable!("both have the queue's format")
            }
        }
    }

    /// Adds a chain to the batch that is published next. Returns the driver's identifier of it.
    pub fn add_to_batch_and_map_id(&mut self, chain: ChainId) -> ChainId {
        self.batch.push(chain.id);
        self.driver_chain_id(chain)
    }

    /// The driver's identifier of a chain, of which devices know the entry in the record.
    fn driver_chain_id(&self, chain: ChainId) -> ChainId {
        match &self.record {
            InflightRecord::Split(_) => chain,
            InflightRecord::Packed(record) => ChainId {
                id: record.buffer_id(chain.id),
                ..chain
            },
        }
    }

    /// Prepares the record for the publication of the batch.
    pub fn record_batch_before_publish(&mut self, ring: &AnyRing) {
        if self.batch.is_empty() {
            return;
        }
        match &mut self.record {
            InflightRecord::Split(record) => record.record_batch_before_publish(&self.batch),
            InflightRecord::Packed(record) => {
                record.record_batch_before_publish(
                    &self.batch,
                    PackedPosition::from_bits(ring.next_used()),
                );
            }
        }
    }

    /// Removes the batch, which was published.
    pub fn remove_published(&mut self, ring: &AnyRing) {
        if self.batch.is_empty() {
            return;
        }
        match &mut self.record {
            InflightRecord::Split(record) => {
                record.remove_published(&self.batch, ring.published_used())
            }
            InflightRecord::Packed(record) => record.remove_published(&self.batch),
        }
        self.batch.clear();
    }

    /// Reverts the pop of chains that were popped last, and removes them from the record. All others are published.
    pub fn try_unpop_chains(&mut self, ring: &mut AnyRing, chains: &[ChainId]) -> bool {
        // Recovered chains are in the ring before the others. And of those that were popped again, a packed ring may not have
        // the descriptors any more.
        let was_recovered = |chain: &ChainId| match &self.record {
            InflightRecord::Split(_) => false,
            InflightRecord::Packed(record) => record.was_recovered(chain.id),
        };
        if !self.recovered.is_empty() || chains.iter().any(was_recovered) {
            return false;
        }
        let named: Vec<ChainId> = chains.iter().map(|id| self.driver_chain_id(*id)).collect();
        let Some(in_order) = ring.try_unpop_chains(&named) else {
            return false;
        };
        match &mut self.record {
            InflightRecord::Split(record) => {
                record.remove_unpopped(&entry_indices_of_chains(&in_order))
            }
            InflightRecord::Packed(record) => {
                record.remove_unpopped(&entry_indices_of_chains(chains))
            }
        }
        true
    }

    /// Whether there is a chain to pop, recovered or in the ring.
    pub fn has_available(&self, ring: &AnyRing) -> bool {
        !self.recovered.is_empty() || !self.ring_is_finished && ring.has_available()
    }

    /// Stops popping the ring: only recovered chains are popped from now on.
    pub fn pop_only_recovered_from_now_on(&mut self) {
        self.ring_is_finished = true;
    }

    /// Number of chains that are still to be popped again.
    pub fn recovered_count(&self) -> u16 {
        count_as_u16_or(self.recovered.len(), u16::MAX)
    }
}

/// The numbers of the chains' entries in the record.
fn entry_indices_of_chains(chains: &[ChainId]) -> Vec<u16> {
    chains.iter().map(|chain| chain.id).collect()
}

/// A count as a `u16`, or `most`, which it is known not to exceed.
fn count_as_u16_or(count: usize, most: u16) -> u16 {
    u16::try_from(count).unwrap_or(most)
}
