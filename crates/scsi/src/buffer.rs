//! Memory of a task's own, for commands that look at the data themselves.
//!
//! It is aligned for direct I/O, made when such a command comes, and given back when it is done:
//! reads and writes have none.

use libc::iovec;

const PAGE_BYTES: usize = 4096;

/// The most that a task has.
pub(crate) const MAX_BUFFER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);

/// Zeroes, until something else is written.
pub(crate) struct Buffer {
    pages: Vec<Page>,
    /// The list of one segment that goes into requests: it must stay where it is when the task moves.
    iov: Box<iovec>,
}

// SAFETY: the pointer in `iov` points into `pages`, which moves with it.
unsafe impl Send for Buffer {}

impl Buffer {
    pub fn new() -> Self {
        Buffer {
            pages: Vec::new(),
            iov: Box::new(iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            }),
        }
    }

    /// Room for `len` bytes, at most [`MAX_BUFFER_BYTES`].
    pub fn reserve(&mut self, len: usize) {
        let pages = len.min(MAX_BUFFER_BYTES).div_ceil(PAGE_BYTES);
        self.pages.resize(pages, Page([0; PAGE_BYTES]));
    }

    /// Gives it back.
    pub fn release(&mut self) {
        self.pages = Vec::new();
    }

    /// All of it. Not while a request uses it.
    pub fn bytes(&mut self) -> &mut [u8] {
        let len = self.pages.len() * PAGE_BYTES;
        // SAFETY: so many pages are nothing but their bytes.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), len) }
    }

    /// Its first `len` bytes as a list of one segment, valid until the next call of anything here.
    pub fn segment(&mut self, len: usize) -> *mut iovec {
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
