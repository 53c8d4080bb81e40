//! A queue that records what it has taken, so that nothing is lost with the process.
//!
//! The queue itself is that of either form; what is done here is to tell its record at the right moment:
//! a chain is recorded before whoever popped it knows of it, and a batch is struck out after it was
//! published. After a crash the chains that were in flight come first, in the order in which they
//! were first taken.

mod packed;
mod split;

pub use packed::TrackedPacked;
pub use split::TrackedSplit;

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::memory::GuestMemory;
use crate::split::{RingFeatures, RingLayout};
use crate::virtqueue::{ChainId, Virtqueue};

/// A virtqueue of either form with a record of what is in flight.
#[derive(Debug)]
pub enum TrackedQueue {
    /// The split form.
    Split(TrackedSplit),
    /// The packed form.
    Packed(TrackedPacked),
}

/// Calls a function of whichever form it is.
macro_rules! form {
    ($queue:expr, |$form:ident| $call:expr) => {
        match $queue {
            TrackedQueue::Split($form) => $call,
            TrackedQueue::Packed($form) => $call,
        }
    };
}

impl TrackedQueue {
    pub(crate) fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
        region: InflightRegion,
    ) -> Result<Self, RingError> {
        Ok(if features.packed {
            TrackedQueue::Packed(TrackedPacked::new(memory, layout, features, base, region)?)
        } else {
            TrackedQueue::Split(TrackedSplit::new(memory, layout, features, base, region)?)
        })
    }

    pub(crate) fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        form!(self, |form| form.queue.remap(memory))
    }

    #[inline]
    pub(crate) fn has_available(&self) -> bool {
        form!(self, |form| !form.again.is_empty()
            || !form.finishing && form.queue.has_available())
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        form!(self, |form| !form.again.is_empty())
    }

    pub(crate) fn finish(&mut self) {
        form!(self, |form| form.finishing = true);
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        form!(self, |form| form.publish())
    }

    #[inline]
    pub(crate) fn disable_kicks(&mut self) {
        form!(self, |form| form.queue.disable_kicks());
    }

    #[inline]
    pub(crate) fn enable_kicks(&mut self) -> bool {
        form!(self, |form| form.queue.enable_kicks()) || self.has_unfinished()
    }

    /// Changes with every pop; and is where the next chain is taken, once those are that were in flight.
    #[inline]
    pub(crate) fn next_avail(&self) -> u16 {
        form!(self, |form| {
            // Fewer than the ring has descriptors.
            let again = u16::try_from(form.again.len()).unwrap_or(u16::MAX);
            form.queue.next_avail().wrapping_sub(again)
        })
    }

    /// As [`SplitQueue::unpop_all`](crate::SplitQueue::unpop_all). A packed queue does not know where in its ring they were.
    pub(crate) fn unpop_all(&mut self, heads: &[u16]) -> bool {
        match self {
            TrackedQueue::Split(form) => form.unpop_all(heads),
            TrackedQueue::Packed(_) => false,
        }
    }

    pub(crate) fn base(&self) -> u32 {
        match self {
            TrackedQueue::Split(form) => u32::from(form.queue.next_avail()),
            TrackedQueue::Packed(form) => {
                u32::from(form.queue.next_avail()) | u32::from(form.queue.published()) << 16
            }
        }
    }
}

impl Virtqueue for TrackedQueue {
    #[inline]
    fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        form!(self, |form| form.pop(memory, chain))
    }

    #[inline]
    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        form!(self, |form| form.push(chain, written_bytes));
    }
}
