//! The host ranges of one descriptor chain.
//!
//! A [`Chain`] is scratch: made once, filled by every pop, read before the next one. It is in the
//! form that the kernel takes (`struct iovec`), so that a request's data goes down without being
//! translated again. It owns no memory of the guest and keeps none alive; whoever starts I/O on
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

/// The name of a chain between its pop and its push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainId {
    /// Split: the first descriptor. Packed: the driver's name for the buffer, any number; in a queue
    /// with an [in-flight recorder](crate::InflightRegion), where the chain is recorded.
    pub id: u16,
    /// Packed: how many descriptors of the ring the chain takes. Split: 0, not needed.
    pub descriptors: u16,
}

impl ChainId {
    /// In a split queue.
    #[inline]
    #[must_use]
    pub fn split(head: u16) -> ChainId {
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
    /// What lies behind the chain's own is left over from earlier ones.
    segments: Box<[iovec; MAX_SEGMENTS]>,
    shape: Shape,
}

/// How a chain's segments are divided. Apart from them so that a walk has it in registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    count: usize,
    readable_count: usize,
    /// Bytes of all segments, and of the readable ones.
    len: u64,
    readable_len: u64,
}

impl Shape {
    /// Counts a buffer of `len` bytes, whose segments follow. `index` is for an error to name.
    #[inline(always)]
    pub fn announce(&mut self, index: u16, len: u32, writable: bool) -> Result<(), RingError> {
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
    /// An empty chain with room for [`MAX_SEGMENTS`]. The only allocation that it ever makes.
    pub fn new() -> Chain {
        let none = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        Chain {
            segments: Box::new([none; MAX_SEGMENTS]),
            shape: Shape::default(),
        }
    }

    /// The device-readable segments: what the driver wrote for us. None is empty.
    #[inline]
    pub fn readable(&self) -> &[iovec] {
        &self.segments[..self.shape.readable_count]
    }

    /// The device-writable segments: where our answer goes. None is empty.
    #[inline]
    pub fn writable(&self) -> &[iovec] {
        &self.segments[self.shape.readable_count..self.shape.count]
    }

    /// The device-readable segments, to be cut in place.
    ///
    /// A caller who changes them keeps them inside the ranges that they had; the lengths told by
    /// [`readable_len`](Self::readable_len) stay as the driver gave them.
    #[inline]
    pub fn readable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[..self.shape.readable_count]
    }

    /// The device-writable segments, to be cut in place, as for
    /// [`readable_mut`](Self::readable_mut).
    #[inline]
    pub fn writable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[self.shape.readable_count..self.shape.count]
    }

    /// Both at once, to be cut in place: the device-readable segments and the device-writable ones.
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [iovec], &mut [iovec]) {
        self.segments[..self.shape.count].split_at_mut(self.shape.readable_count)
    }

    /// Bytes in the device-readable segments. Together with [`writable_len`](Self::writable_len) at
    /// most `u32::MAX`.
    #[inline]
    pub fn readable_len(&self) -> u64 {
        self.shape.readable_len
    }

    /// Bytes in the device-writable segments.
    #[inline]
    pub fn writable_len(&self) -> u64 {
        self.shape.len - self.shape.readable_len
    }

    /// Forgets all segments.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.shape = Shape::default();
    }

    /// Writes a segment of an announced buffer behind those of `shape`, which counts it.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        shape: &mut Shape,
        host: *mut u8,
        len: u32,
        writable: bool,
    ) -> Result<(), RingError> {
        let Some(place) = self.segments.get_mut(shape.count) else {
            return Err(RingError::TooManySegments { max: MAX_SEGMENTS });
        };
        *place = iovec {
            iov_base: host.cast(),
            iov_len: len as usize,
        };
        shape.count += 1;
        if !writable {
            shape.readable_count = shape.count;
        }
        Ok(())
    }

    /// The chain is what was appended to `shape`.
    #[inline(always)]
    pub(crate) fn finish(&mut self, shape: Shape) -> Result<(), RingError> {
        self.shape = shape;
        if shape.len > u64::from(u32::MAX) {
            return Err(RingError::ChainTooLong { len: shape.len });
        }
        Ok(())
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain::new()
    }
}
