//! The two forms of a virtqueue's ring behind one interface.

use crate::chain::{Chain, ChainId};
use crate::error::RingError;
use crate::inflight::RecoveredChain;
use crate::memory::GuestMemory;
use crate::packed::PackedRing;
use crate::split::{RingFeatures, RingLayout, SplitRing};

/// A ring of either form.
#[derive(Debug)]
pub(crate) enum Form {
    /// Section 2.7.
    Split(SplitRing),
    /// Section 2.8.
    Packed(PackedRing),
}

impl Form {
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
    ) -> Result<Form, RingError> {
        Ok(if features.packed {
            Form::Packed(PackedRing::new(memory, layout, features, base)?)
        } else {
            Form::Split(SplitRing::new(memory, layout, features, base)?)
        })
    }

    pub fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        match self {
            Form::Split(ring) => ring.remap(memory),
            Form::Packed(ring) => ring.remap(memory),
        }
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        match self {
            Form::Split(ring) => ring.has_available(),
            Form::Packed(ring) => ring.has_available(),
        }
    }

    #[inline(always)]
    pub fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        match self {
            Form::Split(ring) => Ok(ring.pop(memory, chain)?.map(ChainId::split)),
            Form::Packed(ring) => ring.pop(memory, chain),
        }
    }

    /// Pops a chain that an earlier process had popped.
    pub fn pop_recovered(
        &mut self,
        memory: &GuestMemory,
        recovered: &RecoveredChain,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        match self {
            Form::Split(ring) => ring.pop_again(memory, recovered.entry, chain),
            Form::Packed(ring) => ring.pop_again(memory, &recovered.descriptors, chain),
        }
    }

    /// Reads a chain once more that was popped and is not pushed; false if the ring may not have it any more.
    pub fn read_again(&mut self, memory: &GuestMemory, id: ChainId, chain: &mut Chain) -> bool {
        match self {
            Form::Split(ring) => ring.pop_again(memory, id.id, chain).is_ok(),
            // Used entries may lie over its descriptors.
            Form::Packed(_) => false,
        }
    }

    #[inline]
    pub fn push(&mut self, chain: ChainId, written_bytes: u32) {
        match self {
            Form::Split(ring) => ring.push(chain.id, written_bytes),
            Form::Packed(ring) => ring.push(chain, written_bytes),
        }
    }

    #[inline]
    pub fn publish(&mut self) -> bool {
        match self {
            Form::Split(ring) => ring.publish(),
            Form::Packed(ring) => ring.publish(),
        }
    }

    /// Gives back chains that were popped last, and returns them in the order of the ring. `None`, and nothing has changed,
    /// if others were popped after the first of them.
    pub fn unpop_all(&mut self, chains: &[ChainId]) -> Option<Vec<ChainId>> {
        match self {
            Form::Split(ring) => {
                let heads: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
                let in_order = ring.unpop_all(&heads)?;
                Some(in_order.into_iter().map(ChainId::split).collect())
            }
            Form::Packed(ring) => ring.unpop_all(chains),
        }
    }

    #[inline]
    pub fn disable_kicks(&mut self) {
        match self {
            Form::Split(ring) => ring.disable_kicks(),
            Form::Packed(ring) => ring.disable_kicks(),
        }
    }

    #[inline]
    pub fn enable_kicks(&mut self) -> bool {
        match self {
            Form::Split(ring) => ring.enable_kicks(),
            Form::Packed(ring) => ring.enable_kicks(),
        }
    }

    /// The position of the next chain: an index, or, packed, index and wrap counter.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        match self {
            Form::Split(ring) => ring.next_avail(),
            Form::Packed(ring) => ring.next_avail(),
        }
    }

    /// The position behind the last used entry that was pushed, in the same form.
    #[inline]
    pub fn next_used(&self) -> u16 {
        match self {
            Form::Split(ring) => ring.next_used(),
            Form::Packed(ring) => ring.next_used(),
        }
    }

    /// The position behind the last used entry that was published, in the same form.
    #[inline]
    pub fn published(&self) -> u16 {
        match self {
            Form::Split(ring) => ring.published(),
            Form::Packed(ring) => ring.published(),
        }
    }

    /// See [`Queue::base`](crate::Queue::base).
    pub fn base(&self) -> u32 {
        match self {
            Form::Split(ring) => ring.next_avail().into(),
            Form::Packed(ring) => u32::from(ring.next_avail()) | u32::from(ring.published()) << 16,
        }
    }

    /// Where the device writes beside the buffers of chains: guest addresses and lengths. The front-end calls the part that
    /// only the device writes `used`.
    pub fn written_ring(&self, used: u64, mut range: impl FnMut(u64, u64)) {
        match self {
            Form::Split(ring) => range(used, ring.used_len_bytes() as u64),
            Form::Packed(ring) => ring.written_ring(used, range),
        }
    }
}
