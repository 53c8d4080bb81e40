//! A queue of the form that the driver chose, for its owner.
//!
//! The owner of a queue starts, publishes, parks and stops it without caring for its form. What goes
//! through chains, one by one, matches on the form first and is generic behind it: see
//! [`Virtqueue`](crate::Virtqueue).

use std::sync::Arc;

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::logged::{LoggedQueue, QueueLog};
use crate::memory::GuestMemory;
use crate::packed::PackedQueue;
use crate::planted::{Mistake, is_planted};
use crate::split::{RingFeatures, RingLayout, SplitQueue};
use crate::tracked::TrackedQueue;
use crate::virtqueue::{ChainId, Virtqueue};

/// A started virtqueue of either form.
// With a tag of its own: a look at which one it is takes one comparison.
#[derive(Debug)]
#[repr(u8)]
pub enum Queue {
    /// The split form.
    Split(SplitQueue),
    /// The packed form.
    Packed(PackedQueue),
    /// Either form, with a record of what is in flight, or a log of what is written to the guest's memory.
    Tracked(Box<TrackedQueue>),
}

impl Queue {
    /// Starts a queue of the form that `features` say. `base` is what `VHOST_USER_SET_VRING_BASE`
    /// carries: the available index, or, for a packed queue, index and wrap counter in the lower half
    /// (see [`PackedQueue::new`]); the upper half is not needed.
    ///
    /// # Errors
    /// [`RingError`] for what cannot be started.
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u32,
    ) -> Result<Queue, RingError> {
        let low = (base & 0xffff) as u16;
        Ok(if features.packed {
            Queue::Packed(PackedQueue::new(memory, layout, features, low)?)
        } else {
            Queue::Split(SplitQueue::new(memory, layout, features, low)?)
        })
    }

    /// The same for a queue that records what it takes in `region`. If that has a record already, the queue goes
    /// on from there: what was in flight is taken first, in its order, and the record says where that
    /// was, whatever `base` is.
    ///
    /// # Errors
    /// [`RingError`] for what cannot be started, and for a record that contradicts the rings.
    pub fn tracked(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u32,
        region: InflightRegion,
    ) -> Result<Queue, RingError> {
        let low = (base & 0xffff) as u16;
        let tracked = TrackedQueue::new(memory, layout, features, low, region)?;
        Ok(Queue::Tracked(Box::new(tracked)))
    }

    /// What is written to the guest's memory is logged from now on, in this log; or is not any more. `memory` is what the queue
    /// uses. Nothing else changes: what is in flight stays so, and is logged when it is done.
    pub fn set_log(&mut self, log: Option<QueueLog>, memory: &Arc<GuestMemory>) {
        let logged = match self {
            Queue::Tracked(queue) => queue.logged(),
            Queue::Split(_) | Queue::Packed(_) => None,
        };
        match (logged, log) {
            (Some(logged), Some(log)) => logged.set_log(log),
            (Some(logged), None) => *self = logged.queue().moved(),
            (None, Some(log)) => {
                let logged = LoggedQueue::new(self.moved(), log, memory.clone());
                *self = Queue::Tracked(Box::new(TrackedQueue::Logged(logged)));
            }
            (None, None) => {}
        }
    }

    /// The queue, for another place: the one that it was in is given something else at once. Without its log.
    pub(crate) fn moved(&self) -> Queue {
        match self {
            Queue::Split(queue) => Queue::Split(queue.clone()),
            Queue::Packed(queue) => Queue::Packed(queue.clone()),
            Queue::Tracked(queue) => queue.moved(),
        }
    }

    /// Where the device writes beside the buffers of chains, which the front-end calls `used`: guest addresses and lengths.
    pub(crate) fn written_ring(&self, used: u64, mut range: impl FnMut(u64, u64)) {
        match self {
            Queue::Split(queue) => range(used, queue.used_len_bytes() as u64),
            Queue::Packed(queue) => queue.written_ring(used, range),
            Queue::Tracked(queue) => queue.written_ring(used, range),
        }
    }

    /// Finds a chain once more that was taken and is not given back; false if that cannot be.
    pub(crate) fn look_again(
        &mut self,
        memory: &GuestMemory,
        id: ChainId,
        chain: &mut Chain,
    ) -> bool {
        match self {
            Queue::Split(queue) => queue.pop_again(memory, id.id, chain).is_ok(),
            Queue::Tracked(queue) => queue.look_again(memory, id, chain),
            Queue::Packed(_) => false,
        }
    }

    /// Nothing is taken any more but what was in flight when the queue was started.
    pub fn finish(&mut self) {
        if let Queue::Tracked(queue) = self {
            queue.finish();
        }
    }

    /// Whether there is something that was in flight when the queue was started, and was not taken again yet.
    pub fn has_unfinished(&self) -> bool {
        matches!(self, Queue::Tracked(queue) if queue.has_unfinished())
    }

    /// Finds the rings again after the memory map changed.
    ///
    /// # Errors
    /// [`RingError`] when they are no longer inside one region each; the old memory stays in use.
    pub fn remap(&mut self, memory: &Arc<GuestMemory>) -> Result<(), RingError> {
        match self {
            Queue::Split(queue) => queue.remap(memory),
            Queue::Packed(queue) => queue.remap(memory),
            Queue::Tracked(queue) => queue.remap(memory),
        }
    }

    /// Whether the driver made a chain available that was not popped: cheap, for polling.
    #[inline(always)]
    pub fn has_available(&self) -> bool {
        match self {
            Queue::Split(queue) => queue.has_available(),
            Queue::Packed(queue) => queue.has_available(),
            Queue::Tracked(queue) => queue.has_available(),
        }
    }

    /// Shows the guest all that was pushed, and tells whether it is to be signalled for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        match self {
            Queue::Split(queue) => queue.publish(),
            Queue::Packed(queue) => queue.publish(),
            Queue::Tracked(queue) => queue.publish(),
        }
    }

    /// Asks the guest not to kick while we look at the queue anyway.
    #[inline]
    pub fn disable_kicks(&mut self) {
        match self {
            Queue::Split(queue) => queue.disable_kicks(),
            Queue::Packed(queue) => queue.disable_kicks(),
            Queue::Tracked(queue) => queue.disable_kicks(),
        }
    }

    /// Asks the guest to kick for the next chain, and looks once more: true means that a chain is
    /// there already, for which no kick may come.
    #[inline]
    pub fn enable_kicks(&mut self) -> bool {
        match self {
            Queue::Split(queue) => queue.enable_kicks(),
            Queue::Packed(queue) => queue.enable_kicks(),
            Queue::Tracked(queue) => queue.enable_kicks(),
        }
    }

    /// Where the next chain is taken: changes with every pop.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        match self {
            Queue::Split(queue) => queue.next_avail(),
            Queue::Packed(queue) => queue.next_avail(),
            Queue::Tracked(queue) => queue.next_avail(),
        }
    }

    /// Whether what it takes is recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(self, Queue::Tracked(queue) if queue.is_recorded())
    }

    /// Gives back chains that were taken last, as [`SplitQueue::unpop_all`] and [`PackedQueue::unpop_all`].
    #[must_use]
    pub fn unpop_all(&mut self, chains: &[ChainId]) -> bool {
        match self {
            Queue::Split(queue) => queue.unpop_all(&heads(chains)).is_some(),
            Queue::Packed(queue) => queue.unpop_all(chains),
            Queue::Tracked(queue) => queue.unpop_all(chains),
        }
    }

    /// Where the queue stands, as `VHOST_USER_GET_VRING_BASE` answers: the available index, or, for
    /// a packed queue, index and wrap counter of available and, in the upper half, used
    /// descriptors.
    pub fn base(&self) -> u32 {
        match self {
            Queue::Split(queue) => {
                u32::from(queue.next_avail()) + u32::from(is_planted(Mistake::BaseOffByOne))
            }
            Queue::Packed(queue) => {
                u32::from(queue.next_avail()) | u32::from(queue.published()) << 16
            }
            Queue::Tracked(queue) => queue.base(),
        }
    }
}

pub(crate) fn heads(chains: &[ChainId]) -> Vec<u16> {
    chains.iter().map(|chain| chain.id).collect()
}

/// For who does not mind a look at the form with every chain.
impl Virtqueue for Queue {
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        match self {
            Queue::Split(queue) => Virtqueue::pop(queue, memory, chain),
            Queue::Packed(queue) => Virtqueue::pop(queue, memory, chain),
            Queue::Tracked(queue) => queue.pop(memory, chain),
        }
    }

    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        match self {
            Queue::Split(queue) => Virtqueue::push(queue, chain, written_bytes),
            Queue::Packed(queue) => Virtqueue::push(queue, chain, written_bytes),
            Queue::Tracked(queue) => queue.push(chain, written_bytes),
        }
    }
}
