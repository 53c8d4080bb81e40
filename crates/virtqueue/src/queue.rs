//! A queue of the form that the driver chose, for its owner.
//!
//! The owner of a queue starts, publishes, parks and stops it without caring for its form. What goes
//! through chains, one by one, matches on the form first and is generic behind it: see
//! [`Virtqueue`](crate::Virtqueue).

use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::memory::GuestMemory;
use crate::packed::PackedQueue;
use crate::split::{RingFeatures, RingLayout, SplitQueue};
use crate::tracked::TrackedQueue;
use crate::virtqueue::ChainId;

/// A started virtqueue of either form.
// With a tag of its own: a look at which one it is takes one comparison.
#[derive(Debug)]
#[repr(u8)]
pub enum Queue {
    /// The split form.
    Split(SplitQueue),
    /// The packed form.
    Packed(PackedQueue),
    /// Either form, with a record of what is in flight.
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
    pub fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        match self {
            Queue::Split(queue) => queue.remap(memory),
            Queue::Packed(queue) => queue.remap(memory),
            Queue::Tracked(queue) => queue.remap(memory),
        }
    }

    /// Whether the driver made a chain available that was not popped: cheap, for polling.
    #[inline]
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
        matches!(self, Queue::Tracked(_))
    }

    /// Gives back chains that were taken last, as [`SplitQueue::unpop_all`]. A packed queue does not know any more
    /// where in its ring they were.
    #[must_use]
    pub fn unpop_all(&mut self, chains: &[ChainId]) -> bool {
        match self {
            Queue::Split(queue) => queue.unpop_all(&heads(chains)).is_some(),
            Queue::Tracked(queue) => queue.unpop_all(&heads(chains)),
            Queue::Packed(_) => false,
        }
    }

    /// Where the queue stands, as `VHOST_USER_GET_VRING_BASE` answers: the available index, or, for
    /// a packed queue, index and wrap counter of available and, in the upper half, used
    /// descriptors.
    pub fn base(&self) -> u32 {
        match self {
            Queue::Split(queue) => u32::from(queue.next_avail()),
            Queue::Packed(queue) => {
                u32::from(queue.next_avail()) | u32::from(queue.published()) << 16
            }
            Queue::Tracked(queue) => queue.base(),
        }
    }
}

fn heads(chains: &[ChainId]) -> Vec<u16> {
    chains.iter().map(|chain| chain.id).collect()
}
