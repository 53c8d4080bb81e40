//! Zero-filled memory from mmap(2) for a queue's statistics and request slots; a page is allocated when it is first written.
//!
//! A queue has room for as many requests as its ring has entries, and most queues never have more than a few. An allocator
//! clears reused memory from end to end; the pages of a new mapping exist when they are first written, one by one. No page is
//! freed before the whole is dropped.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// A slice of zero bytes, each page of which exists once it was written.
pub struct ZeroPages<T: Zeroable> {
    start: NonNull<T>,
    count: usize,
}

/// All-zero bytes are a valid value, which needs no drop.
///
/// # Safety
/// All-zero bytes are valid, and the alignment is at most that of a page.
pub unsafe trait Zeroable {}

// SAFETY: a raw pointer and a length.
unsafe impl Zeroable for libc::iovec {}

// SAFETY: it owns its values as a box would.
unsafe impl<T: Zeroable + Send> Send for ZeroPages<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Sync> Sync for ZeroPages<T> {}

impl<T: Zeroable> ZeroPages<T> {
    /// `count` values that are all zero.
    pub fn new(count: usize) -> Self {
        let layout = Layout::array::<T>(count).expect("a queue's worth of memory");
        if layout.size() == 0 {
            return ZeroPages {
                start: NonNull::dangling(),
                count,
            };
        }
        // SAFETY: new pages, wherever there is room; the result is checked.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                layout.size(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            handle_alloc_error(layout);
        }
        ZeroPages {
            start: NonNull::new(start.cast()).expect("not mapped at zero"),
            count,
        }
    }
}

impl<T: Zeroable> Drop for ZeroPages<T> {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<T>();
        if bytes != 0 {
            // SAFETY: the mapping that `new` made, once.
            unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
        }
    }
}

impl<T: Zeroable> Deref for ZeroPages<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` values, mapped as long as `self`; zero bytes are valid by `Zeroable`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T: Zeroable> DerefMut for ZeroPages<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and we are borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// One value in pages of its own, which its clones share: each is a pointer to it.
pub struct ZeroPage<T: Zeroable> {
    value: NonNull<T>,
    /// Never looked at: it keeps the pages.
    pages: Arc<ZeroPages<T>>,
}

// SAFETY: a shared reference to the value, and a share in its pages.
unsafe impl<T: Zeroable + Send + Sync> Send for ZeroPage<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Send + Sync> Sync for ZeroPage<T> {}

impl<T: Zeroable> ZeroPage<T> {
    /// A value that is zero.
    pub fn new() -> Self {
        let pages = Arc::new(ZeroPages::new(1));
        ZeroPage {
            value: pages.start,
            pages,
        }
    }
}

impl<T: Zeroable> Default for ZeroPage<T> {
    fn default() -> Self {
        ZeroPage::new()
    }
}

impl<T: Zeroable> Clone for ZeroPage<T> {
    fn clone(&self) -> Self {
        ZeroPage {
            value: self.value,
            pages: self.pages.clone(),
        }
    }
}

impl<T: Zeroable> Deref for ZeroPage<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: there is one, mapped as long as `self.pages`, and never borrowed exclusively; zero bytes are
        // valid by `Zeroable`.
        unsafe { self.value.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(pages: &ZeroPages<libc::iovec>) -> usize {
        let bytes = pages.len() * size_of::<libc::iovec>();
        let mut seen = vec![0_u8; bytes.div_ceil(4096)];
        // SAFETY: a mapping of ours, and room for a byte per page.
        let done =
            unsafe { libc::mincore(pages.as_ptr().cast_mut().cast(), bytes, seen.as_mut_ptr()) };
        assert_eq!(done, 0);
        seen.iter().filter(|byte| *byte & 1 != 0).count()
    }

    #[test]
    fn only_what_is_written_exists() {
        let mut pages = ZeroPages::<libc::iovec>::new(4 * 256);
        assert_eq!(resident(&pages), 0);
        pages[2 * 256].iov_len = 7;
        assert_eq!(resident(&pages), 1);
        assert!(pages[1].iov_base.is_null());
        assert_eq!(
            pages.iter().map(|segment| segment.iov_len).sum::<usize>(),
            7
        );
    }

    #[test]
    fn a_shared_value_stays_until_the_last_is_dropped() {
        let first = ZeroPage::<libc::iovec>::new();
        let second = first.clone();
        drop(first);
        assert_eq!(
            second.iov_len, 0,
            "an access to unmapped pages ends the test"
        );
    }
}
