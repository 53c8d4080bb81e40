//! The initiator's buffers: a list of segments (`iovec`) of host memory, which belongs to the adapter, with functions to copy
//! from and to them, and to compare.
//!
//! The initiator may write there at any time, so nothing here makes a slice of it: bytes are copied
//! before they are used.

use libc::iovec;

/// A view of a list of segments, for which the conditions of [`Segments::new`] hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    iov: *mut iovec,
    count: u32,
    len: u64,
}

// SAFETY: the pointers are used only between `Task::run` and the end of the task, by the task's thread;
// the conditions of `Segments::new` allow that.
unsafe impl Send for Segments {}

/// A copy of a list, for when a request may have changed the list itself.
pub(crate) struct SegmentListCopy(Vec<iovec>);

// SAFETY: as for `Segments`, of which it is a copy.
unsafe impl Send for SegmentListCopy {}

impl Segments {
    pub const EMPTY: Segments = Segments {
        iov: std::ptr::null_mut(),
        count: 0,
        len: 0,
    };

    /// # Safety
    /// `iov` is a list of `count` segments which may be read and written as long as this is used, from
    /// any thread; `len` is at most their sum.
    pub unsafe fn new(iov: *mut iovec, count: u32, len: u64) -> Self {
        Segments { iov, count, len }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The list, to go into a request.
    pub fn iov_and_count(&self) -> (*mut iovec, u32) {
        (self.iov, self.count)
    }

    fn list(&self) -> &[iovec] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: a condition of `new`; no other code changes the list during the borrow.
        unsafe { std::slice::from_raw_parts(self.iov, self.count as usize) }
    }

    fn list_mut(&mut self) -> &mut [iovec] {
        if self.count == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.iov, self.count as usize) }
    }

    /// A copy of the list, for when a request may change the list itself.
    pub fn list_copy(&self) -> SegmentListCopy {
        SegmentListCopy(self.list().to_vec())
    }

    /// The same buffers, by a copy of their list, without the first `skip` bytes.
    pub fn from_list_copy_skipping(copy: &mut SegmentListCopy, skip: u64, len: u64) -> Self {
        let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
        copy.0.retain_mut(|segment| {
            let cut = skip.min(segment.iov_len);
            skip -= cut;
            segment.iov_base = segment.iov_base.wrapping_byte_add(cut);
            segment.iov_len -= cut;
            segment.iov_len > 0
        });
        Segments {
            iov: copy.0.as_mut_ptr(),
            count: u32::try_from(copy.0.len()).unwrap_or(u32::MAX),
            len,
        }
    }

    /// Truncates the list itself, so that the sum of its segments is `len` bytes.
    pub fn truncate(&mut self, len: u64) {
        let mut left = usize::try_from(len).unwrap_or(usize::MAX);
        let mut count = 0;
        for segment in self.list_mut() {
            if left == 0 {
                break;
            }
            segment.iov_len = segment.iov_len.min(left);
            left -= segment.iov_len;
            count += 1;
        }
        self.count = count;
        self.len = self.len.min(len);
    }

    /// Calls `visit` with address and length of each piece of the `len` bytes from `skip` on, until it
    /// returns false.
    fn visit_parts_while(
        &self,
        skip: u64,
        len: usize,
        mut visit: impl FnMut(*mut u8, usize) -> bool,
    ) {
        let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let mut left = len;
        for segment in self.list() {
            let cut = skip.min(segment.iov_len);
            skip -= cut;
            let count = (segment.iov_len - cut).min(left);
            if count > 0 {
                let at = segment.iov_base.cast::<u8>().wrapping_add(cut);
                if !visit(at, count) {
                    return;
                }
            }
            left -= count;
            if left == 0 {
                return;
            }
        }
    }

    /// Copies the initiator's bytes from `skip` on, and returns their number.
    pub fn copy_to_slice(&self, skip: u64, to: &mut [u8]) -> usize {
        let mut done = 0;
        self.visit_parts_while(skip, to.len(), |at, count| {
            // SAFETY: `new` promised that the segment may be read; `visit_parts_while` stays within `to.len()`.
            unsafe { std::ptr::copy_nonoverlapping(at, to.as_mut_ptr().add(done), count) };
            done += count;
            true
        });
        done
    }

    /// Copies bytes to the initiator from `skip` on, and returns the number of those that fit.
    pub fn copy_from_slice(&self, skip: u64, from: &[u8]) -> usize {
        let mut done = 0;
        self.visit_parts_while(skip, from.len(), |at, count| {
            // SAFETY: `new` promised that the segment may be written; `visit_parts_while` stays within `from.len()`.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(done), at, count) };
            done += count;
            true
        });
        done
    }

    /// The first offset behind `skip` at which the initiator's bytes differ from `with`.
    pub fn first_difference(&self, skip: u64, with: &[u8]) -> Option<usize> {
        let mut done = 0;
        let mut window = [0; 1024];
        for part in with.chunks(window.len()) {
            let got = self.copy_to_slice(skip + done as u64, &mut window[..part.len()]);
            let differs = part
                .iter()
                .zip(&window[..got])
                .position(|(ours, theirs)| ours != theirs);
            if let Some(at) = differs {
                return Some(done + at);
            }
            done += got;
        }
        None
    }
}
