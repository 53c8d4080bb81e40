//! From the head of a descriptor chain to host segments.
//!
//! Follows a chain through the descriptor table and, where negotiated, through one indirect table
//! at its end (sections 2.7.5 and 2.7.5.3), and refuses whatever a driver must not build. It ends
//! after as many steps as its tables have descriptors, whatever the guest does meanwhile.
//!
//! Buffers of zero bytes pass and leave no segment: the specification does not forbid them, their
//! meaning is plain, and breaking a guest's disk over one would help nobody.

use std::ptr::NonNull;

use crate::chain::Chain;
use crate::descriptor::{DESCRIPTOR_LEN_BYTES, Descriptor, F_INDIRECT, F_NEXT, F_WRITE};
use crate::error::RingError;
use crate::memory::GuestMemory;
use crate::ring::RingView;
use crate::split::MAX_QUEUE_SIZE;

/// The most descriptors of one chain, which is also the longest indirect table. The specification
/// limits a chain to the queue size (section 2.7.5.3.1), Linux guests go beyond it in indirect
/// tables, and 1024 is both the largest queue that we take and the most segments that the kernel
/// takes in one call (`UIO_MAXIOV`), so a longer chain could not be carried out as one request.
pub const MAX_CHAIN_DESCRIPTORS: u16 = 1024;

// A chain without an indirect table may use the whole queue.
const _: () = assert!(MAX_QUEUE_SIZE <= MAX_CHAIN_DESCRIPTORS);

/// Reads chains; `region_hint` makes the next look-up start where the last one ended.
pub(crate) struct Walk<'a> {
    pub rings: &'a RingView,
    pub memory: &'a GuestMemory,
    pub indirect: bool,
    pub region_hint: &'a mut usize,
}

impl Walk<'_> {
    /// Appends the segments of the chain that begins at `head`, which is below the queue size.
    #[inline]
    pub fn chain(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
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
                return self.indirect_table(&descriptor, chain);
            }
            self.buffer(index, &descriptor, chain)?;
            match next(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return Ok(()),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    /// Appends the segments of an indirect table. Its own WRITE flag means nothing
    /// (section 2.7.5.3.2).
    fn indirect_table(&mut self, table: &Descriptor, chain: &mut Chain) -> Result<(), RingError> {
        let (addr, len) = (table.addr, table.len);
        let bad_length = RingError::IndirectLength {
            addr,
            len,
            max_descriptors: MAX_CHAIN_DESCRIPTORS,
        };
        let descriptor_len = u32::from(DESCRIPTOR_LEN_BYTES);
        if len == 0 || !len.is_multiple_of(descriptor_len) {
            return Err(bad_length);
        }
        let table_size = match u16::try_from(len / descriptor_len) {
            Ok(table_size) if table_size <= MAX_CHAIN_DESCRIPTORS => table_size,
            _ => return Err(bad_length),
        };
        let whole = match self.memory.slice_at(self.region_hint, addr, u64::from(len)) {
            Some((host, here)) if here == u64::from(len) => Some(host),
            _ => None,
        };
        let mut index = 0;
        for _ in 0..table_size {
            let descriptor = self.indirect_descriptor(addr, whole, index)?;
            if descriptor.flags & F_INDIRECT != 0 {
                return Err(RingError::NestedIndirect { index });
            }
            self.buffer(index, &descriptor, chain)?;
            match next(index, &descriptor, table_size)? {
                Some(following) => index = following,
                None => return Ok(()),
            }
        }
        Err(RingError::ChainLoop { table_size })
    }

    /// Descriptor `index` (inside the table) of the indirect table at `addr`, which is at `whole`
    /// when it is inside one region, and looked up piece by piece when not.
    #[inline]
    fn indirect_descriptor(
        &mut self,
        addr: u64,
        whole: Option<NonNull<u8>>,
        index: u16,
    ) -> Result<Descriptor, RingError> {
        let offset = usize::from(DESCRIPTOR_LEN_BYTES) * usize::from(index);
        if let Some(table) = whole {
            // SAFETY: the whole table was looked up, and the index is inside it.
            return Ok(unsafe { Descriptor::read(table.add(offset)) });
        }
        let outside = RingError::IndirectOutsideMemory { addr, index };
        let Some(at) = addr.checked_add(offset as u64) else {
            return Err(outside);
        };
        match self.memory.host_range(at, u64::from(DESCRIPTOR_LEN_BYTES)) {
            // SAFETY: the 16 bytes were looked up.
            Ok(host) => Ok(unsafe { Descriptor::read(host) }),
            Err(_) => Err(outside),
        }
    }

    /// Appends the segments of one buffer: one, or several if it lies across regions.
    #[inline]
    fn buffer(
        &mut self,
        index: u16,
        descriptor: &Descriptor,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let writable = descriptor.flags & F_WRITE != 0;
        if !writable && chain.writable_len() != 0 {
            return Err(RingError::ReadableAfterWritable { index });
        }
        let total = chain.readable_len() + chain.writable_len() + u64::from(descriptor.len);
        if total > u64::from(u32::MAX) {
            return Err(RingError::ChainTooLong { len: total });
        }
        let (mut addr, mut left) = (descriptor.addr, descriptor.len);
        while left != 0 {
            let outside = RingError::BufferOutsideMemory {
                index,
                addr: descriptor.addr,
                len: descriptor.len,
            };
            let Some((host, here)) = self
                .memory
                .slice_at(self.region_hint, addr, u64::from(left))
            else {
                return Err(outside);
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "here <= left, which is a u32"
            )]
            let here = here as u32;
            chain.append(host, here, writable)?;
            left -= here;
            if left != 0 {
                // Memory that ends with the address space has nothing after it.
                addr = addr.checked_add(u64::from(here)).ok_or(outside)?;
            }
        }
        Ok(())
    }
}

/// The descriptor that follows, checked against its table; `None` at the end of the chain.
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
