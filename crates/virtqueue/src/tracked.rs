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

use std::sync::Arc;

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::logged::LoggedQueue;
use crate::memory::GuestMemory;
use crate::queue::{Queue, heads};
use crate::split::{RingFeatures, RingLayout};
use crate::virtqueue::{ChainId, Virtqueue};

/// A virtqueue of either form of which more is kept than the queue itself has.
// With a tag of its own, as `Queue`.
#[derive(Debug)]
#[repr(u8)]
pub enum TrackedQueue {
    /// The split form, with a record of what is in flight.
    Split(TrackedSplit),
    /// The packed form, with a record.
    Packed(TrackedPacked),
    /// Either form, with a record or without, and a log of what is written to the guest's memory.
    Logged(LoggedQueue),
}

/// Calls a function of whichever form it is, or of one that is logged.
macro_rules! form {
    ($queue:expr, |$form:ident| $call:expr, |$logged:ident| $other:expr) => {
        match $queue {
            TrackedQueue::Split($form) => $call,
            TrackedQueue::Packed($form) => $call,
            TrackedQueue::Logged($logged) => $other,
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

    pub(crate) fn logged(&mut self) -> Option<&mut LoggedQueue> {
        match self {
            TrackedQueue::Split(_) | TrackedQueue::Packed(_) => None,
            TrackedQueue::Logged(logged) => Some(logged),
        }
    }

    /// The queue, for another place, without its log.
    pub(crate) fn moved(&self) -> Queue {
        let tracked = match self {
            TrackedQueue::Split(form) => TrackedQueue::Split(form.clone()),
            TrackedQueue::Packed(form) => TrackedQueue::Packed(form.clone()),
            TrackedQueue::Logged(logged) => return logged.queue().moved(),
        };
        Queue::Tracked(Box::new(tracked))
    }

    pub(crate) fn remap(&mut self, memory: &Arc<GuestMemory>) -> Result<(), RingError> {
        form!(self, |form| form.queue.remap(memory), |logged| logged
            .remap(memory))
    }

    #[inline]
    pub(crate) fn has_available(&self) -> bool {
        form!(
            self,
            |form| !form.again.is_empty() || !form.finishing && form.queue.has_available(),
            |logged| logged.has_available()
        )
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        form!(self, |form| !form.again.is_empty(), |logged| logged
            .queue()
            .has_unfinished())
    }

    pub(crate) fn finish(&mut self) {
        form!(self, |form| form.finishing = true, |logged| logged.finish());
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        form!(self, |form| form.publish(), |logged| logged.publish())
    }

    #[inline]
    pub(crate) fn disable_kicks(&mut self) {
        form!(self, |form| form.queue.disable_kicks(), |logged| logged
            .disable_kicks());
    }

    #[inline]
    pub(crate) fn enable_kicks(&mut self) -> bool {
        form!(
            self,
            |form| form.queue.enable_kicks() || !form.again.is_empty(),
            |logged| logged.enable_kicks()
        )
    }

    /// Changes with every pop; and is where the next chain is taken, once those are that were in flight.
    #[inline]
    pub(crate) fn next_avail(&self) -> u16 {
        form!(
            self,
            |form| {
                // Fewer than the ring has descriptors.
                let again = u16::try_from(form.again.len()).unwrap_or(u16::MAX);
                form.queue.next_avail().wrapping_sub(again)
            },
            |logged| logged.next_avail()
        )
    }

    pub(crate) fn base(&self) -> u32 {
        match self {
            TrackedQueue::Split(form) => u32::from(form.queue.next_avail()),
            TrackedQueue::Packed(form) => {
                u32::from(form.queue.next_avail()) | u32::from(form.queue.published()) << 16
            }
            TrackedQueue::Logged(logged) => logged.queue().base(),
        }
    }

    /// As [`Queue::unpop_all`].
    pub(crate) fn unpop_all(&mut self, chains: &[ChainId]) -> bool {
        match self {
            TrackedQueue::Split(form) => form.unpop_all(&heads(chains)),
            TrackedQueue::Packed(form) => form.unpop_all(chains),
            TrackedQueue::Logged(logged) => logged.unpop_all(chains),
        }
    }

    pub(crate) fn is_recorded(&self) -> bool {
        match self {
            TrackedQueue::Split(_) | TrackedQueue::Packed(_) => true,
            TrackedQueue::Logged(logged) => logged.queue().is_recorded(),
        }
    }

    pub(crate) fn written_ring(&self, used: u64, mut range: impl FnMut(u64, u64)) {
        match self {
            TrackedQueue::Split(form) => range(used, form.queue.used_len_bytes() as u64),
            TrackedQueue::Packed(form) => form.queue.written_ring(used, range),
            TrackedQueue::Logged(_) => {}
        }
    }

    pub(crate) fn look_again(
        &mut self,
        memory: &GuestMemory,
        id: ChainId,
        chain: &mut Chain,
    ) -> bool {
        match self {
            TrackedQueue::Split(form) => form.queue.pop_again(memory, id.id, chain).is_ok(),
            TrackedQueue::Packed(_) | TrackedQueue::Logged(_) => false,
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
        form!(self, |form| form.pop(memory, chain), |logged| logged
            .pop(memory, chain))
    }

    #[inline]
    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        form!(self, |form| form.push(chain, written_bytes), |logged| {
            logged.push(chain, written_bytes)
        });
    }
}
