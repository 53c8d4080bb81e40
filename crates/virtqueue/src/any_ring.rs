//! A virtqueue's ring in either format, split or packed, behind one interface.

use crate::chain::{Chain, ChainId};
use crate::error::RingError;
use crate::layout::{RingFeatures, RingLayout};
use crate::memory::GuestMemory;
use crate::packed::{PackedDescriptor, PackedRing};
use crate::split::SplitRing;

/// A split or a packed ring.
#[derive(Debug)]
pub(crate) enum AnyRing {
    /// Section 2.7.
    Split(SplitRing),
    /// Section 2.8.
    Packed(PackedRing),
}

impl AnyRing {
    /// Starts a ring in the format that `features` choose.
    pub fn new(
        memory: &GuestMemory,
        layout: RingLayout,
        features: RingFeatures,
        base: u16,
    ) -> Result<AnyRing, RingError> {
        Ok(if features.packed {
            AnyRing::Packed(PackedRing::new(memory, layout, features, base)?)
        } else {
            AnyRing::Split(SplitRing::new(memory, layout, features, base)?)
        })
    }

    /// Looks up the ring again after the memory map has changed.
    pub fn remap(&mut self, memory: &GuestMemory) -> Result<(), RingError> {
        match self {
            AnyRing::Split(ring) => ring.remap(memory),
            AnyRing::Packed(ring) => ring.remap(memory),
        }
    }

    #[inline]
    pub fn has_available(&self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.has_available(),
            AnyRing::Packed(ring) => ring.has_available(),
        }
    }

    /// Pops the next chain that the driver made available.
    #[inline(always)]
    pub fn pop(
        &mut self,
        memory: &GuestMemory,
        chain: &mut Chain,
    ) -> Result<Option<ChainId>, RingError> {
        match self {
            AnyRing::Split(ring) => Ok(ring.pop(memory, chain)?.map(ChainId::from_split_head)),
            AnyRing::Packed(ring) => ring.pop(memory, chain),
        }
    }

    /// Reads a chain that an earlier process had popped, and moves no position: split, the one that begins at `head`; packed, the one
    /// with these `descriptors`.
    pub fn read_recovered_chain(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        descriptors: &[PackedDescriptor],
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        match self {
            AnyRing::Split(ring) => ring.read_chain_again(memory, head, chain),
            AnyRing::Packed(ring) => {
                ring.read_chain_from_descriptor_copies(memory, descriptors, chain)
            }
        }
    }

    /// Whether it keeps the descriptors of a chain until that is pushed.
    pub fn keeps_descriptors_of_popped_chains(&self) -> bool {
        match self {
            AnyRing::Split(_) => true,
            // Used entries may lie over them.
            AnyRing::Packed(_) => false,
        }
    }

    /// Reads a chain again that was popped and is not pushed; false if the ring may not have it any more.
    pub fn try_reread_popped_chain(
        &mut self,
        memory: &GuestMemory,
        id: ChainId,
        chain: &mut Chain,
    ) -> bool {
        match self {
            AnyRing::Split(ring) => ring.read_chain_again(memory, id.id, chain).is_ok(),
            AnyRing::Packed(_) => false,
        }
    }

    #[inline]
    pub fn push(&mut self, chain: ChainId, written_bytes: u32) {
        match self {
            AnyRing::Split(ring) => ring.push(chain.id, written_bytes),
            AnyRing::Packed(ring) => ring.push(chain, written_bytes),
        }
    }

    #[inline]
    pub fn publish(&mut self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.publish(),
            AnyRing::Packed(ring) => ring.publish(),
        }
    }

    /// Reverts the pop of chains that were popped last, and returns them in the order of the ring. `None`, and nothing has
    /// changed, if others were popped after the first of them.
    pub fn try_unpop_chains(&mut self, chains: &[ChainId]) -> Option<Vec<ChainId>> {
        match self {
            AnyRing::Split(ring) => {
                let heads: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
                let in_order = ring.try_unpop_chains(&heads)?;
                Some(in_order.into_iter().map(ChainId::from_split_head).collect())
            }
            AnyRing::Packed(ring) => ring.try_unpop_chains(chains),
        }
    }

    #[inline]
    pub fn disable_kicks(&mut self) {
        match self {
            AnyRing::Split(ring) => ring.disable_kicks(),
            AnyRing::Packed(ring) => ring.disable_kicks(),
        }
    }

    #[inline]
    pub fn enable_kicks_and_recheck(&mut self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.enable_kicks_and_recheck(),
            AnyRing::Packed(ring) => ring.enable_kicks_and_recheck(),
        }
    }

    /// The position of the next chain: an index, or, packed, index and wrap counter.
    #[inline]
    pub fn next_avail(&self) -> u16 {
        match self {
            AnyRing::Split(ring) => ring.next_avail(),
            AnyRing::Packed(ring) => ring.next_avail(),
        }
    }

    /// The position behind the last used entry that was pushed, in the same format.
    #[inline]
    pub fn next_used(&self) -> u16 {
        match self {
            AnyRing::Split(ring) => ring.next_used(),
            AnyRing::Packed(ring) => ring.next_used(),
        }
    }

    /// The position behind the last used entry that was published, in the same format.
    #[inline]
    pub fn published_used(&self) -> u16 {
        match self {
            AnyRing::Split(ring) => ring.published_used(),
            AnyRing::Packed(ring) => ring.published_used(),
        }
    }

    /// See [`Queue::base`](crate::Queue::base).
    pub fn base(&self) -> u32 {
        match self {
            AnyRing::Split(ring) => ring.next_avail().into(),
            AnyRing::Packed(ring) => {
                u32::from(ring.next_avail()) | u32::from(ring.published_used()) << 16
            }
        }
    }

    /// Calls `range` with guest address and length of each part of the ring that the device writes. The front-end calls the part that
    /// only the device writes `used`.
    pub fn for_each_device_written_ring_part(&self, used: u64, mut range: impl FnMut(u64, u64)) {
        match self {
            AnyRing::Split(ring) => range(used, ring.used_len_bytes() as u64),
            AnyRing::Packed(ring) => ring.for_each_device_written_ring_part(used, range),
        }
    }
}
