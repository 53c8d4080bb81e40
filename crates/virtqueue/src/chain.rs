//! The host ranges of one descriptor chain.
//!
//! A [`Chain`] is scratch: made once, filled by every pop, read before the next one. It is in the
//! form that the kernel takes (`struct iovec`), so that a request's data goes down without being
//! translated again. It owns no memory of the guest and keeps none alive; whoever starts I/O on
//! a segment holds the `GuestMemory` it came from until that I/O is over.

use std::ptr::NonNull;

use libc::iovec;

use crate::error::RingError;
use crate::walk::MAX_CHAIN_DESCRIPTORS;

/// The most host segments of one chain: one per descriptor of the longest chain, and some room for
/// buffers that lie across the border of two adjacent memory regions and become two segments. A
/// border is crossed by few buffers at a time; 64 is more borders than front-ends have of them, and
/// a guest that exceeds it does so on purpose.
pub const MAX_SEGMENTS: usize = MAX_CHAIN_DESCRIPTORS as usize + 64;

/// Scratch for one descriptor chain: first the segments that the device may only read, then those
/// that it may write, each in the driver's order. Allocated once per thread and reused.
#[derive(Debug)]
pub struct Chain {
    /// At most `MAX_SEGMENTS`, which is its capacity: it never grows.
    segments: Vec<iovec>,
    readable_count: usize,
    readable_len: u64,
    writable_len: u64,
}

// SAFETY: the segments' addresses are plain numbers to this type, which never dereferences them.
unsafe impl Send for Chain {}

impl Chain {
    /// An empty chain with room for [`MAX_SEGMENTS`]. The only allocation that it ever makes.
    pub fn new() -> Chain {
        Chain {
            segments: Vec::with_capacity(MAX_SEGMENTS),
            readable_count: 0,
            readable_len: 0,
            writable_len: 0,
        }
    }

    /// The device-readable segments: what the driver wrote for us. None is empty.
    pub fn readable(&self) -> &[iovec] {
        &self.segments[..self.readable_count]
    }

    /// The device-writable segments: where our answer goes. None is empty.
    pub fn writable(&self) -> &[iovec] {
        &self.segments[self.readable_count..]
    }

    /// The device-readable segments, to be cut in place.
    ///
    /// A caller who changes them keeps them inside the ranges that they had; the lengths told by
    /// [`readable_len`](Self::readable_len) stay as the driver gave them.
    pub fn readable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[..self.readable_count]
    }

    /// The device-writable segments, to be cut in place, as for
    /// [`readable_mut`](Self::readable_mut).
    pub fn writable_mut(&mut self) -> &mut [iovec] {
        &mut self.segments[self.readable_count..]
    }

    /// Bytes in the device-readable segments. Together with [`writable_len`](Self::writable_len) at
    /// most `u32::MAX`.
    pub fn readable_len(&self) -> u64 {
        self.readable_len
    }

    /// Bytes in the device-writable segments.
    pub fn writable_len(&self) -> u64 {
        self.writable_len
    }

    /// Forgets all segments.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.readable_count = 0;
        self.readable_len = 0;
        self.writable_len = 0;
    }

    /// Adds a segment at the end. Readable ones come first: the walk has seen to that.
    #[inline]
    pub(crate) fn append(
        &mut self,
        host: NonNull<u8>,
        len: u32,
        writable: bool,
    ) -> Result<(), RingError> {
        if self.segments.len() == MAX_SEGMENTS {
            return Err(RingError::TooManySegments { max: MAX_SEGMENTS });
        }
        self.segments.push(iovec {
            iov_base: host.as_ptr().cast(),
            iov_len: len as usize,
        });
        if writable {
            self.writable_len += u64::from(len);
        } else {
            self.readable_count += 1;
            self.readable_len += u64::from(len);
        }
        Ok(())
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain::new()
    }
}
