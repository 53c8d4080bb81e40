//! The host ranges of one descriptor chain, as `struct iovec`, and the identifier of a chain.
//!
//! A [`Chain`] is scratch memory: allocated once, filled by every pop, read before the next one. Its segments are
//! `struct iovec`, as the kernel takes them. It owns no memory of the guest and keeps none alive; the code that starts I/O on
//! a segment holds the `GuestMemory` it came from until that I/O is over.

use std::ptr;

use libc::iovec;

use crate::error::RingError;
use crate::layout::MAX_CHAIN_DESCRIPTORS;

/// The most host segments of one chain: one per descriptor of the longest chain, and some room for
/// buffers that lie across the border of two adjacent memory regions and become two segments. A
/// border is crossed by few buffers at a time; 64 is more borders than front-ends have of them, and
/// a guest that exceeds it does so on purpose.
pub const MAX_SEGMENTS: usize = MAX_CHAIN_DESCRIPTORS as usize + 64;

/// Identifier of a chain between its pop and its push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainId {
    /// Split: the first descriptor. Packed: the driver's name for the buffer, any number; in a queue
    /// with an [in-flight recorder](crate::InflightRegion), where the chain is recorded.
    pub id: u16,
    /// Packed: number of descriptors of the ring in the chain. Split: 0, not needed.
    pub descriptors: u16,
}

impl ChainId {
    /// The identifier of a chain in a split queue.
    #[inline]
    #[must_use]
    pub fn from_split_head(head: u16) -> ChainId {
        ChainId {
            id: head,
            descriptors: 0,
        }
    }
}

/// Scratch for one descriptor chain: first the segments that the device may only read, then those
/// that it may write, each in the driver's order. Allocated once per thread and reused.
#[derive(Debug)]
pub struct Chain {
    /// Segments after the chain's own are left over from earlier chains.
    segments: Box<[iovec; MAX_SEGMENTS]>,
    counts: SegmentCounts,
}

/// Counts of a chain's segments and bytes, readable and writable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SegmentCounts {
    count: usize,
    readable_count: usize,
    /// Bytes of all segments, and of the readable ones.
    len: u64,
    readable_len: u64,
}

impl SegmentCounts {
    /// Counts the bytes of a buffer, whose segments follow; refuses a readable one after a writable one. `index` is its descriptor,
    /// for an error.
    #[inline(always)]
    pub fn count_and_check_buffer(
        &mut self,
        index: u16,
        len: u32,
        writable: bool,
    ) -> Result<(), RingError> {
        let before = self.len;
        // A chain has too few descriptors for the sum to overflow.
        self.len += u64::from(len);
        if !writable {
            if before != self.readable_len {
                return Err(RingError::ReadableAfterWritable { index });
            }
            self.readable_len = self.len;
        }
        Ok(())
    }
}

// SAFETY: the segments' addresses are plain numbers to this type, which never dereferences them.
unsafe impl Send for Chain {}

impl Chain {
    /// An empty chain with room for [`MAX_SEGMENTS`], its only allocation.
    pub fn new() -> Chain {
        let none = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        Chain {
            segments: Box::new([none; MAX_SEGMENTS]),
            counts: SegmentCounts::default(),
        }
    }

    /// The device-readable segments. None is empty.
    #[inline]
    pub fn readable(&self) -> &[iovec] {
        &self.segments[..self.counts.readable_count]
    }

    /// The device-writable segments. None is empty.
    #[inline]
    pub fn writable(&self) -> &[iovec] {
        &self.segments[self.counts.readable_count..self.counts.count]
    }

    /// The device-readable segments, to be shortened in place.
    ///
    /// A caller that changes them keeps them inside the ranges that they had;
    /// [`readable_len`](Self::readable_len) stays as the driver gave it.
    #[inline]
    pub fn readable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[..self.counts.readable_count]
    }

    /// The device-writable segments, to be shortened in place, as for
    /// [`readable_mut`](Self::readable_mut).
    #[inline]
    pub fn writable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[self.counts.readable_count..self.counts.count]
    }

    /// The device-readable and the device-writable segments, to be shortened in place.
    #[inline]
    pub fn readable_and_writable_mut(&mut self) -> (&mut [iovec], &mut [iovec]) {
        self.segments[..self.counts.count].split_at_mut(self.counts.readable_count)
    }

    /// Bytes in the device-readable segments. Together with [`writable_len`](Self::writable_len) at
    /// most `u32::MAX`.
    #[inline]
    pub fn readable_len(&self) -> u64 {
        self.counts.readable_len
    }

    /// Bytes in the device-writable segments.
    #[inline]
    pub fn writable_len(&self) -> u64 {
        self.counts.len - self.counts.readable_len
    }

    /// Removes all segments.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.counts = SegmentCounts::default();
    }

    /// Appends a segment of a counted buffer to those that `counts` has, which is increased.
    #[inline(always)]
    pub(crate) fn append_segment(
        &mut self,
        counts: &mut SegmentCounts,
        host: *mut u8,
        len: u32,
        writable: bool,
    ) -> Result<(), RingError> {
        let Some(segment) = self.segments.get_mut(counts.count) else {
            return Err(RingError::TooManySegments { max: MAX_SEGMENTS });
        };
        *segment = iovec {
            iov_base: host.cast(),
            iov_len: len as usize,
        };
        counts.count += 1;
        if !writable {
            counts.readable_count = counts.count;
        }
        Ok(())
    }

    /// Completes the chain, with the segments that `counts` has; refuses more bytes than a used length can express.
    #[inline(always)]
    pub(crate) fn set_counts_and_check_len(
        &mut self,
        counts: SegmentCounts,
    ) -> Result<(), RingError> {
        self.counts = counts;
        if counts.len > u64::from(u32::MAX) {
            return Err(RingError::ChainTooLong { len: counts.len });
        }
        Ok(())
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain::new()
    }
}
