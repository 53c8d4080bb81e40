//! A queue that records what it has taken, so that nothing is lost with the process.
//!
//! The queue itself is that of either form; what is done here is to tell its record at the right moment:
//! a chain is recorded before whoever popped it knows of it, and a batch is struck out after it was
//! published. After a crash the chains that were in flight come first, in the order in which they
//! were first taken.

mod packed;
mod split;

use packed::TrackedPacked;
use split::TrackedSplit;

use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::memory::GuestMemory;
use crate::split::{RingFeatures, RingLayout};
use crate::virtqueue::{ChainId, Virtqueue};

/// A virtqueue of either form with a record of what is in flight.
#[derive(Debug)]
pub struct TrackedQueue(Form);

#[derive(Debug)]
enum Form {
    Split(TrackedSplit),
    Packed(TrackedPacked),
}

/// Calls a function of whichever form it is.
macro_rules! form {
    ($queue:expr, |$form:ident| $call:expr) => {
        match &$queue.0 {
            Form::Split($form) => $call,
            Form::Packed($form) => $call,
        }
    };
    (mut $queue:expr, |$form:ident| $call:expr) => {
        match &mut $queue.0 {
            Form::Split($form) => $call,
            Form::Packed($form) => $call,
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
        Ok(TrackedQueue(if features.packed {
            Form::Packed(TrackedPacked::new(memory, layout, features, base, region)?)
        } else {
            Form::Split(TrackedSplit::new(memory, layout, features, base, region)?)
        }))
    }

    pub(crate) fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        form!(mut self, |form| form.queue.remap(memory))
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
        form!(mut self, |form| form.finishing = true);
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        form!(mut self, |form| form.publish())
    }

    #[inline]
    pub(crate) fn disable_kicks(&mut self) {
        form!(mut self, |form| form.queue.disable_kicks());
    }

    #[inline]
    pub(crate) fn enable_kicks(&mut self) -> bool {
        form!(mut self, |form| form.queue.enable_kicks()) || self.has_unfinished()
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

    pub(crate) fn base(&self) -> u32 {
        match &self.0 {
            Form::Split(form) => u32::from(form.queue.next_avail()),
            Form::Packed(form) => {
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
        form!(mut self, |form| form.pop(memory, chain))
    }

    #[inline]
    fn push(&mut self, chain: ChainId, written_bytes: u32) {
        form!(mut self, |form| form.push(chain, written_bytes));
    }
}
