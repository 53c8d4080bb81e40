//! Translation of the buffers of descriptors to host segments, and access to indirect tables, for both ring formats.
//!
//! Buffers of zero bytes are accepted and leave no segment: the specification does not forbid them, their
//! meaning is plain, and an error would only break a guest's disk.

use std::ptr::NonNull;

use crate::chain::{Chain, SegmentCounts};
use crate::descriptor::{DESCRIPTOR_LEN_BYTES, read_descriptor_words};
use crate::error::RingError;
use crate::layout::MAX_CHAIN_DESCRIPTORS;
use crate::memory::{GuestMemory, RegionAddresses};

/// Translates the buffers of one chain. Those of a guest are nearly always in the same region, which is
/// cached here.
#[derive(Clone, Copy)]
pub(crate) struct BufferTranslator<'a> {
    memory: &'a GuestMemory,
    cached_region: RegionAddresses,
    region: usize,
    counts: SegmentCounts,
}

impl<'a> BufferTranslator<'a> {
    /// A translation in `memory` that begins with the region that the last chain ended in; any number is allowed.
    #[inline]
    pub fn new(memory: &'a GuestMemory, region: usize) -> BufferTranslator<'a> {
        BufferTranslator {
            memory,
            cached_region: memory.mapping_of_region(region),
            region,
            counts: SegmentCounts::default(),
        }
    }

    /// Appends the segments of one buffer, named by descriptor `index`: one, or several if it lies
    /// across regions.
    #[inline(always)]
    pub fn append_buffer(
        &mut self,
        index: u16,
        start: u64,
        len: u32,
        writable: bool,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        self.counts.count_and_check_buffer(index, len, writable)?;
        if let Some(host) = self.cached_region.host_addr_of_range(start, len) {
            return chain.append_segment(&mut self.counts, host, len, writable);
        }
        // A copy, so that this value stays in registers.
        let mut buffers = *self;
        buffers.append_uncached_buffer(index, start, len, writable, chain)?;
        *self = buffers;
        Ok(())
    }

    /// Completes the chain. Returns the region to begin the next one in.
    #[inline]
    pub fn finish_chain(self, chain: &mut Chain) -> Result<usize, RingError> {
        chain.set_counts_and_check_len(self.counts)?;
        Ok(self.region)
    }

    /// The host address of `len` bytes, if one region has them all. The cached region does not change.
    #[inline]
    fn host_addr_of_range(self, addr: u64, len: u32) -> Option<NonNull<u8>> {
        match self.cached_region.host_addr_of_range(addr, len) {
            Some(host) => NonNull::new(host),
            None => self.memory.host_addr_of_range(addr, u64::from(len)).ok(),
        }
    }

    /// Appends a rare buffer: empty, in another region than the cached one, or in several. Caches the region that it ends in.
    #[cold]
    fn append_uncached_buffer(
        &mut self,
        index: u16,
        start: u64,
        len: u32,
        writable: bool,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let outside = || RingError::BufferOutsideMemory {
            index,
            addr: start,
            len,
        };
        let (mut addr, mut left) = (start, len);
        while left != 0 {
            let Some((host, here)) = self.memory.first_contiguous_part_with_hint(
                &mut self.region,
                addr,
                u64::from(left),
            ) else {
                return Err(outside());
            };
            #[expect(
                clippy::cast_possible_truncation,
                reason = "here <= left, which is a u32"
            )]
            let here = here as u32;
            chain.append_segment(&mut self.counts, host.as_ptr(), here, writable)?;
            left -= here;
            if left != 0 {
                // Memory that ends with the address space has nothing after it.
                let Some(after) = addr.checked_add(u64::from(here)) else {
                    return Err(outside());
                };
                addr = after;
            }
        }
        self.cached_region = self.memory.mapping_of_region(self.region);
        Ok(())
    }
}

/// An indirect table of an allowed length (sections 2.7.5.3 and 2.8.7).
pub(crate) struct IndirectTable {
    addr: u64,
    size: u16,
    /// Its host address if it is inside one region; else each descriptor is looked up.
    contiguous: Option<NonNull<u8>>,
}

impl IndirectTable {
    /// Checks the length of the table of `len` bytes at `addr`, and looks up its host address.
    #[inline]
    pub fn check_len_and_look_up(
        buffers: BufferTranslator<'_>,
        addr: u64,
        len: u32,
    ) -> Result<IndirectTable, RingError> {
        let bad_length = || RingError::IndirectLength {
            addr,
            len,
            max_descriptors: MAX_CHAIN_DESCRIPTORS,
        };
        let descriptor_len = u32::from(DESCRIPTOR_LEN_BYTES);
        if len == 0 || !len.is_multiple_of(descriptor_len) {
            return Err(bad_length());
        }
        let size = match u16::try_from(len / descriptor_len) {
            Ok(size) if size <= MAX_CHAIN_DESCRIPTORS => size,
            _ => return Err(bad_length()),
        };
        let contiguous = buffers.host_addr_of_range(addr, len);
        Ok(IndirectTable {
            addr,
            size,
            contiguous,
        })
    }

    /// Number of descriptors.
    pub fn descriptor_count(&self) -> u16 {
        self.size
    }

    /// Reads the two words of descriptor `index`, which is inside the table.
    #[inline]
    pub fn descriptor_words(
        &self,
        memory: &GuestMemory,
        index: u16,
    ) -> Result<[u64; 2], RingError> {
        debug_assert!(index < self.size);
        let offset = usize::from(DESCRIPTOR_LEN_BYTES) * usize::from(index);
        if let Some(table) = self.contiguous {
            // SAFETY: the whole table was looked up, and the index is inside it.
            return Ok(unsafe { read_descriptor_words(table.add(offset)) });
        }
        self.descriptor_words_across_regions(memory, index, offset as u64)
    }

    /// Reads the words of a descriptor of a table that lies across regions, which no sane driver has.
    #[cold]
    fn descriptor_words_across_regions(
        &self,
        memory: &GuestMemory,
        index: u16,
        offset: u64,
    ) -> Result<[u64; 2], RingError> {
        let len = u64::from(DESCRIPTOR_LEN_BYTES);
        let host = self
            .addr
            .checked_add(offset)
            .and_then(|at| memory.host_addr_of_range(at, len).ok());
        match host {
            // SAFETY: the 16 bytes were looked up.
            Some(host) => Ok(unsafe { read_descriptor_words(host) }),
            None => Err(RingError::IndirectOutsideMemory {
                addr: self.addr,
                index,
            }),
        }
    }
}
