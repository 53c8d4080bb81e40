//! Reads a descriptor chain of a split queue, checks it, and translates its buffers to host segments.
//!
//! Follows a chain through the descriptor table and, where negotiated, through one indirect table
//! at its end (sections 2.7.5 and 2.7.5.3), and refuses everything that a driver must not build. It ends
//! after as many steps as its tables have descriptors, whatever the guest does meanwhile.

use super::ring::SplitView;
use crate::buffers::{BufferTranslator, IndirectTable};
use crate::chain::Chain;
use crate::descriptor::{Descriptor, F_INDIRECT, F_NEXT, F_WRITE};
use crate::error::RingError;
use crate::memory::GuestMemory;

/// Reader of one chain.
pub(crate) struct ChainReader<'a> {
    pub rings: &'a SplitView,
    pub memory: &'a GuestMemory,
    pub buffers: BufferTranslator<'a>,
    /// Whether indirect tables were negotiated.
    pub indirect: bool,
}

impl ChainReader<'_> {
    /// Reads the chain that begins at `head`, which is below the queue size, into `chain`. Returns the
    /// region to begin the next one in.
    #[inline(always)]
    pub fn read_chain(mut self, head: u16, chain: &mut Chain) -> Result<usize, RingError> {
        let table_size = self.rings.size();
        let mut index = head;
        for _ in 0..table_size {
            let descriptor = self.rings.descriptor(index);
            if descriptor.flags & F_INDIRECT != 0 {
                if !self.indirect {
                    return Err(RingError::IndirectNotNegotiated { index });
                }
                if descriptor.flags & F_NEXT != 0 {
                    return Err(RingError::IndirectWithNext { index });
                }
                return self.append_indirect_table(descriptor, chain);
            }
            self.append_buffer(index, &descriptor, chain)?;
            match next_descriptor(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return self.buffers.finish_chain(chain),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    /// Appends the segments of an indirect table. The WRITE flag of its descriptor has no meaning
    /// (section 2.7.5.3.2).
    #[inline(always)]
    fn append_indirect_table(
        mut self,
        reference: Descriptor,
        chain: &mut Chain,
    ) -> Result<usize, RingError> {
        let table =
            IndirectTable::check_len_and_look_up(self.buffers, reference.addr, reference.len)?;
        let table_size = table.descriptor_count();
        let mut index = 0;
        for _ in 0..table_size {
            let descriptor = Descriptor::from_words(table.descriptor_words(self.memory, index)?);
            if descriptor.flags & F_INDIRECT != 0 {
                return Err(RingError::NestedIndirect { index });
            }
            self.append_buffer(index, &descriptor, chain)?;
            match next_descriptor(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return self.buffers.finish_chain(chain),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    /// Appends the segments of the buffer of one descriptor.
    #[inline(always)]
    fn append_buffer(
        &mut self,
        index: u16,
        descriptor: &Descriptor,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let Descriptor { addr, len, .. } = *descriptor;
        let writable = descriptor.flags & F_WRITE != 0;
        self.buffers
            .append_buffer(index, addr, len, writable, chain)
    }
}

/// The next descriptor, checked against its table; `None` at the end of the chain.
#[inline]
fn next_descriptor(
    index: u16,
    descriptor: &Descriptor,
    table_size: u16,
) -> Result<Option<u16>, RingError> {
    if descriptor.flags & F_NEXT == 0 {
        return Ok(None);
    }
    let next = descriptor.next;
    if next >= table_size {
        return Err(RingError::NextOutOfRange {
            index,
            next,
            table_size,
        });
    }
    Ok(Some(next))
}
