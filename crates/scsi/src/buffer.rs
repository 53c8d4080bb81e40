//! A task's own page-aligned buffer, for commands that process data.
//!
//! It is aligned for direct I/O, allocated when such a command comes, and released when it is done:
//! reads and writes need none.

use libc::iovec;

const PAGE_BYTES: usize = 4096;

/// Most bytes of a task's buffer.
pub(crate) const MAX_BUFFER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct AlignedPage([u8; PAGE_BYTES]);

const _: () = assert!(size_of::<AlignedPage>() == PAGE_BYTES);

/// A page-aligned buffer, initially zero.
pub(crate) struct TaskBuffer {
    pages: Vec<AlignedPage>,
    /// The list of one segment for requests. It is boxed since it must not move with the task.
    iov: Box<iovec>,
}

// SAFETY: the pointer in `iov` points into `pages`, which moves with it.
unsafe impl Send for TaskBuffer {}

impl TaskBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        TaskBuffer {
            pages: Vec::new(),
            iov: Box::new(iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }),
        }
    }

    /// Resizes the buffer to whole pages for `len` bytes, at most [`MAX_BUFFER_BYTES`].
    pub fn resize(&mut self, len: usize) {
        let pages = len.min(MAX_BUFFER_BYTES).div_ceil(PAGE_BYTES);
        self.pages.resize(pages, AlignedPage([0; PAGE_BYTES]));
    }

    /// Releases the memory.
    pub fn release(&mut self) {
        self.pages = Vec::new();
    }

    /// All bytes. Not to be called while a request uses them.
    pub fn bytes(&mut self) -> &mut [u8] {
        let len = self.pages.len() * PAGE_BYTES;
        // SAFETY: the pages are contiguous, and have no padding.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), len) }
    }

    /// The first `len` bytes as an `iovec` for a request, valid until the next call of any method.
    pub fn first_bytes_iov(&mut self, len: usize) -> *mut iovec {
        let bytes = self.bytes();
        let len = len.min(bytes.len());
        let base = bytes.as_mut_ptr();
        *self.iov = iovec {
            iov_base: base.cast(),
            iov_len: len,
        };
        &raw mut *self.iov
    }
}
