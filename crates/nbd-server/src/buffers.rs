//! Buffers for the data of requests, which a connection reuses. Their memory is bounded, and aligned for direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of buffers: that of pages, which direct I/O to any disk accepts.
const ALIGNMENT: usize = 4096;
/// The smallest buffer is a page, the largest has the 32 MiB of the largest request.
const CLASSES: usize = 14;

const _: () = assert!(ALIGNMENT << (CLASSES - 1) == nbd::wire::MAX_PAYLOAD_BYTES as usize);

/// Memory of a power of two, which begins at a page. It was zeroed once, so it only ever has data of its own connection.
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    class: u8,
}

// SAFETY: the memory has one owner.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Its first byte. The kernel accesses it while a request is in flight; then there are no references to it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No request that uses the buffer is in flight.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is ours and initialised; the caller promises that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), bytes_of_class(self.class)) }
    }

    /// Its bytes, to write to.
    ///
    /// # Safety
    /// As for [`Buffer::as_slice`].
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the same, and we are the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), bytes_of_class(self.class)) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.memory.as_ptr(), layout_of_class(self.class)) };
    }
}

const fn bytes_of_class(class: u8) -> usize {
    ALIGNMENT << class
}

fn layout_of_class(class: u8) -> Layout {
    // A power of two of at most 32 MiB is a valid size.
    Layout::from_size_align(bytes_of_class(class), ALIGNMENT).unwrap_or(Layout::new::<u8>())
}

/// The class of the smallest buffer for so many bytes.
fn class_for(len: u32) -> u8 {
    let pages = (len as usize).div_ceil(ALIGNMENT).max(1);
    #[allow(clippy::cast_possible_truncation, reason = "less than 64")]
    let class = pages.next_power_of_two().trailing_zeros() as u8;
    class
}

/// The buffers of a connection: those in use and free ones together have at most `limit` bytes.
pub(crate) struct BufferPool {
    free: [Vec<Buffer>; CLASSES],
    /// Bytes of all buffers.
    allocated: usize,
    /// Bytes of the free ones.
    cached: usize,
    limit: usize,
    max_count: usize,
}

impl BufferPool {
    /// Without buffers. Those in use have at most `limit` bytes, which the largest request has to fit, and are at most `max_count`.
    pub fn new(limit: usize, max_count: usize) -> Self {
        BufferPool {
            free: Default::default(),
            allocated: 0,
            cached: 0,
            limit,
            max_count,
        }
    }

    /// A buffer for so many bytes; `None` if others have to be returned first.
    pub fn take(&mut self, len: u32) -> Option<Buffer> {
        let class = class_for(len);
        let bytes = bytes_of_class(class);
        if let Some(buffer) = self.free[usize::from(class)].pop() {
            self.cached -= bytes;
            return Some(buffer);
        }
        if self.allocated - self.cached + bytes > self.limit {
            return None;
        }
        if self.allocated + bytes > self.limit {
            // Buffers of other sizes are free.
            self.drop_free();
        }
        let layout = layout_of_class(class);
        // SAFETY: the layout has a size.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        self.allocated += bytes;
        // So that returning one allocates nothing.
        let free = &mut self.free[usize::from(class)];
        free.reserve(self.max_count);
        Some(Buffer { memory, class })
    }

    /// Returns a buffer.
    pub fn put(&mut self, buffer: Buffer) {
        self.cached += bytes_of_class(buffer.class);
        self.free[usize::from(buffer.class)].push(buffer);
    }

    /// Whether there are free buffers.
    pub fn has_free(&self) -> bool {
        self.cached > 0
    }

    /// Drops all free buffers.
    pub fn drop_free(&mut self) {
        self.free.iter_mut().for_each(Vec::clear);
        self.allocated -= self.cached;
        self.cached = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_next_power_of_two_of_pages() {
        let mut pool = BufferPool::new(1 << 26, 8);
        for (len, bytes) in [(1, 4096), (4096, 4096), (4097, 8192), (1 << 25, 1 << 25)] {
            let buffer = pool.take(len).unwrap();
            // SAFETY: no request uses it.
            assert_eq!(unsafe { buffer.as_slice() }.len(), bytes, "{len}");
            assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
            let address = buffer.as_ptr();
            pool.put(buffer);
            let again = pool.take(len).unwrap();
            assert_eq!(again.as_ptr(), address, "it is used again");
            pool.put(again);
        }
    }

    #[test]
    fn memory_is_bounded_and_the_largest_request_fits_when_others_are_done() {
        let mut pool = BufferPool::new(1 << 26, 8);
        let first = pool.take(1 << 25).unwrap();
        let small = pool.take(4096).unwrap();
        assert!(pool.take(1 << 25).is_none(), "64 MiB are the limit");
        pool.put(small);
        // The free page is dropped for it.
        let second = pool.take(1 << 25).unwrap();
        assert!(pool.take(1).is_none());
        pool.put(first);
        pool.put(second);
        assert_eq!((pool.allocated, pool.cached), (1 << 26, 1 << 26));
        pool.drop_free();
        assert_eq!((pool.allocated, pool.has_free()), (0, false));
    }
}
