//! Walk of a split queue's descriptor chain, to host segments.
//!
//! Follows a chain through the descriptor table and, where negotiated, through one indirect table
//! at its end (sections 2.7.5 and 2.7.5.3), and refuses everything that a driver must not build. It ends
//! after as many steps as its tables have descriptors, whatever the guest does meanwhile.

use super::ring::RingView;
use crate::buffers::{Buffers, Table};
use crate::chain::Chain;
use crate::descriptor::{Descriptor, F_INDIRECT, F_NEXT, F_WRITE};
use crate::error::RingError;
use crate::memory::GuestMemory;

/// Reader of chains.
pub(crate) struct Walk<'a> {
    pub rings: &'a RingView,
    pub memory: &'a GuestMemory,
    pub buffers: Buffers<'a>,
    pub indirect: bool,
}

impl Walk<'_> {
    /// Reads the chain that begins at `head`, which is below the queue size, into `chain`. Returns the
    /// region to begin the next one in.
    #[inline(always)]
    pub fn chain(mut self, head: u16, chain: &mut Chain) -> Result<usize, RingError> {
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
                return self.indirect_table(descriptor, chain);
            }
            self.buffer(index, &descriptor, chain)?;
            match next(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return self.buffers.finish(chain),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    /// Appends the segments of an indirect table. The WRITE flag of its descriptor has no meaning
    /// (section 2.7.5.3.2).
    #[inline(always)]
    fn indirect_table(
        mut self,
        reference: Descriptor,
        chain: &mut Chain,
    ) -> Result<usize, RingError> {
        let table = Table::find(self.buffers, reference.addr, reference.len)?;
        let table_size = table.size();
        let mut index = 0;
        for _ in 0..table_size {
            let descriptor = Descriptor::from_words(table.words(self.memory, index)?);
            if descriptor.flags & F_INDIRECT != 0 {
                return Err(RingError::NestedIndirect { index });
            }
            self.buffer(index, &descriptor, chain)?;
            match next(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return self.buffers.finish(chain),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    #[inline(always)]
    fn buffer(
        &mut self,
        index: u16,
        descriptor: &Descriptor,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let Descriptor { addr, len, .. } = *descriptor;
        let writable = descriptor.flags & F_WRITE != 0;
        self.buffers.append(index, addr, len, writable, chain)
    }
}

/// The next descriptor, checked against its table; `None` at the end of the chain.
#[inline]
fn next(index: u16, descriptor: &Descriptor, table_size: u16) -> Result<Option<u16>, RingError> {
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
