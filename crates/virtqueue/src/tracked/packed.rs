//! A packed queue with its record.

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::{InflightRegion, PackedTracker, Recorded};
use crate::memory::GuestMemory;
use crate::packed::{PackedQueue, Position};
use crate::split::{RingFeatures, RingLayout};
use crate::virtqueue::{ChainId, Virtqueue};

/// A packed virtqueue with a record of what is in flight.
#[derive(Clone, Debug)]
pub struct TrackedPacked {
    pub(super) queue: PackedQueue,
    tracker: PackedTracker,
    /// Chains that were in flight and are to be taken again, the first one last.
    pub(super) again: Vec<Recorded>,
    /// Where chains are recorded that were pushed and are not published.
    batch: Vec<u16>,
    /// Nothing else is taken any more.
    pub(super) finishing: bool,
}

impl TrackedPacked {
    pub(super) fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
        region: InflightRegion,
    ) -> Result<Self, RingError> {
        // What a front-end says that was not told where the queue had stopped may be anything.
        let recorded = region.is_recorded();
        let start = if recorded {
            Position::START.to_bits()
        } else {
            base
        };
        let mut queue = PackedQueue::new(memory, layout, features, start)?;
        let (tracker, chains) = PackedTracker::start(region, queue.ring(), queue.used_position())?;
        let mut again = Vec::new();
        if let Some(chains) = chains {
            let taken = chains
                .iter()
                .map(|chain| chain.descriptors.len())
                .sum::<usize>();
            // Not more than the size, which is a u16.
            let taken = u16::try_from(taken).unwrap_or(layout.size);
            queue.seek(tracker.used(), taken);
            again = chains;
            again.reverse();
        }
        Ok(TrackedPacked {
            queue,
            tracker,
            again,
            batch: Vec::with_capacity(layout.size.into()),
            finishing: false,
        })
    }

    #[cold]
    fn pop_again(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        let Some(Recorded { entry, descriptors }) = self.again.last() else {
            return Ok(None);
        };
        self.queue.pop_again(memory, descriptors, chain)?;
        let id = ChainId {
            id: *entry,
            // As many as fit the ring.
            descriptors: u16::try_from(descriptors.len()).unwrap_or(u16::MAX),
        };
        self.again.pop();
        Ok(Some(id))
    }

    /// Gives back what was taken last, and strikes it out. All else is published.
    pub(super) fn unpop_all(&mut self, chains: &[ChainId]) -> bool {
        let is_again = |chain: &ChainId| self.tracker.is_again(chain.id);
        // Where they are is behind those that were in flight before. And of these the ring may not say any more what they were.
        if !self.again.is_empty() || chains.iter().any(is_again) {
            return false;
        }
        let named = |chain: &ChainId| ChainId {
            id: self.tracker.id(chain.id),
            ..*chain
        };
        let by_driver: Vec<ChainId> = chains.iter().map(named).collect();
        if !self.queue.unpop_all(&by_driver) {
            return false;
        }
        let entries: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
        self.tracker.untaken(&entries);
        true
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.batch.is_empty() {
            return false;
        }
        self.tracker.link(&self.batch, self.queue.used_position());
        let signal = self.queue.publish();
        self.tracker.seen(&self.batch);
        self.batch.clear();
        signal
    }
}

impl Virtqueue for TrackedPacked {
    #[inline]
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        if !self.again.is_empty() || self.finishing {
            return self.pop_again(memory, chain);
        }
        let at = self.queue.avail_position();
        let Some(ChainId { descriptors, .. }) = self.queue.pop(memory, chain)? else {
            return Ok(None);
        };
        let id = self.tracker.taken(self.queue.ring(), at, descriptors);
        Ok(Some(ChainId { id, descriptors }))
    }

    #[inline]
    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        let entry = chain.id;
        let id = self.tracker.id(entry);
        self.queue.push(ChainId { id, ..chain }, written_bytes);
        self.batch.push(entry);
    }
}
