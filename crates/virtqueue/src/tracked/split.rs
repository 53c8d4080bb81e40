//! A split queue with its record.

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::{InflightRegion, SplitTracker};
use crate::memory::GuestMemory;
use crate::planted::{Mistake, is_planted};
use crate::split::{RingFeatures, RingLayout, SplitQueue};
use crate::virtqueue::{ChainId, Virtqueue};

/// A split virtqueue with a record of what is in flight.
#[derive(Clone, Debug)]
pub struct TrackedSplit {
    pub(super) queue: SplitQueue,
    tracker: SplitTracker,
    /// Heads that were in flight and are to be taken again, the first one last.
    pub(super) again: Vec<u16>,
    /// Heads that were pushed and are not published.
    batch: Vec<u16>,
    /// Nothing else is taken any more.
    pub(super) finishing: bool,
}

impl TrackedSplit {
    pub(super) fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
        region: InflightRegion,
    ) -> Result<Self, RingError> {
        let mut queue = SplitQueue::new(memory, layout, features, base)?;
        let (tracker, heads) = SplitTracker::start(region, layout.size, queue.published())?;
        let mut again = Vec::new();
        if let Some(heads) = heads {
            // Not more than the size, which is a u16.
            queue.seek(u16::try_from(heads.len()).unwrap_or(layout.size));
            again = heads;
            if !is_planted(Mistake::ResubmitReversed) {
                again.reverse();
            }
        }
        Ok(TrackedSplit {
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
        let Some(&head) = self.again.last() else {
            return Ok(None);
        };
        self.queue.pop_again(memory, head, chain)?;
        self.again.pop();
        Ok(Some(id(head)))
    }

    /// Gives back what was taken last, and strikes it out. All else is published.
    pub(super) fn unpop_all(&mut self, heads: &[u16]) -> bool {
        // Where they are is behind those that were in flight before.
        if !self.again.is_empty() {
            return false;
        }
        let Some(in_order) = self.queue.unpop_all(heads) else {
            return false;
        };
        self.tracker.untaken(&in_order);
        true
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.batch.is_empty() {
            return false;
        }
        self.tracker.link(&self.batch);
        if is_planted(Mistake::ClearInflightEarly) {
            let published = self.queue.published();
            self.tracker.seen(&self.batch, published);
        }
        let signal = self.queue.publish();
        self.tracker.seen(&self.batch, self.queue.published());
        self.batch.clear();
        signal
    }
}

impl Virtqueue for TrackedSplit {
    #[inline(always)]
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        if !self.again.is_empty() || self.finishing {
            return self.pop_again(memory, chain);
        }
        let Some(head) = self.queue.pop(memory, chain)? else {
            return Ok(None);
        };
        if !is_planted(Mistake::RecordAfterActing) {
            self.tracker.taken(head);
        }
        Ok(Some(id(head)))
    }

    #[inline]
    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        if is_planted(Mistake::RecordAfterActing) {
            self.tracker.taken(chain.id);
        }
        self.queue.push(chain.id, written_bytes);
        self.batch.push(chain.id);
    }
}

fn id(head: u16) -> ChainId {
    ChainId {
        id: head,
        descriptors: 0,
    }
}
