//! Reads a descriptor chain of a packed queue, checks it, and translates its buffers to host segments.
//!
//! A chain is one indirect descriptor, or descriptors that follow each other in the ring
//! (section 2.8.6); those of an indirect table are in order and need no flags (section 2.8.7). A chain cannot have a loop; it can only
//! run into descriptors that the device has already.

use super::position::PackedPosition;
use super::ring::{PackedDescriptor, PackedView};
use crate::buffers::{BufferTranslator, IndirectTable};
use crate::chain::Chain;
use crate::descriptor::{F_INDIRECT, F_NEXT, F_WRITE};
use crate::error::RingError;
use crate::memory::GuestMemory;

/// Reader of one chain.
pub(super) struct ChainReader<'a> {
    pub ring: &'a PackedView,
    pub memory: &'a GuestMemory,
    pub buffers: BufferTranslator<'a>,
    /// Whether indirect tables were negotiated.
    pub indirect: bool,
    /// Descriptors of the ring that the device has: they are in no new chain.
    pub taken: u16,
}

impl ChainReader<'_> {
    /// Appends the segments of the chain that begins at `start` with the descriptor `first`. Returns
    /// the buffer ID, which its last descriptor has, and the number of its descriptors.
    #[inline(always)]
    pub fn read_chain(
        &mut self,
        start: PackedPosition,
        first: PackedDescriptor,
        chain: &mut Chain,
    ) -> Result<(u16, u16), RingError> {
        let size = self.ring.size();
        if self.taken >= size {
            return Err(Self::too_many_descriptors_error(self.ring, self.taken));
        }
        if first.flags & F_INDIRECT != 0 {
            self.append_indirect_table(start.index, &first, chain)?;
            return Ok((first.id, 1));
        }
        let (mut at, mut descriptor, mut count) = (start, first, 1);
        loop {
            self.append_buffer(at.index, &descriptor, chain)?;
            if descriptor.flags & F_NEXT == 0 {
                return Ok((descriptor.id, count));
            }
            if count >= size - self.taken {
                return Err(Self::too_many_descriptors_error(self.ring, self.taken));
            }
            at = at.advance(1, size);
            count += 1;
            // Written before the first one was made available: no ordering is needed.
            descriptor = self.ring.descriptor(at.index);
            let index = at.index;
            if !at.is_available(descriptor.flags) {
                return Err(RingError::NotAvailable { index });
            }
            if descriptor.flags & F_INDIRECT != 0 {
                return Err(RingError::IndirectInChain { index });
            }
        }
    }

    /// Appends the segments of a chain from a copy of its descriptors, which is not trusted.
    pub fn read_chain_from_descriptor_copies(
        &mut self,
        descriptors: &[PackedDescriptor],
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        if let [table] = descriptors
            && table.flags & F_INDIRECT != 0
        {
            return self.append_indirect_table(0, table, chain);
        }
        for (index, descriptor) in (0..).zip(descriptors) {
            if descriptor.flags & F_INDIRECT != 0 {
                return Err(RingError::IndirectInChain { index });
            }
            self.append_buffer(index, descriptor, chain)?;
        }
        Ok(())
    }

    /// Appends the segments of an indirect table. In it, no flag but WRITE means anything, and in
    /// the descriptor that refers to it, WRITE does not (section 2.8.7).
    #[inline(always)]
    fn append_indirect_table(
        &mut self,
        index: u16,
        table: &PackedDescriptor,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { index });
        }
        if table.flags & F_NEXT != 0 {
            return Err(RingError::IndirectWithNext { index });
        }
        let table = IndirectTable::check_len_and_look_up(self.buffers, table.addr, table.len)?;
        for index in 0..table.descriptor_count() {
            let descriptor =
                PackedDescriptor::from_words(table.descriptor_words(self.memory, index)?);
            self.append_buffer(index, &descriptor, chain)?;
        }
        Ok(())
    }

    /// Appends the segments of the buffer of one descriptor.
    #[inline(always)]
    fn append_buffer(
        &mut self,
        index: u16,
        descriptor: &PackedDescriptor,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let PackedDescriptor { addr, len, .. } = *descriptor;
        let writable = descriptor.flags & F_WRITE != 0;
        self.buffers
            .append_buffer(index, addr, len, writable, chain)
    }

    /// The error of a chain that is longer than what the driver has of the ring.
    #[cold]
    fn too_many_descriptors_error(ring: &PackedView, taken: u16) -> RingError {
        RingError::TooManyDescriptors {
            size: ring.size(),
            taken,
        }
    }
}
