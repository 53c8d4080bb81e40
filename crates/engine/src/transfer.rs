//! Progress of one read or write: applies results of the kernel to its buffers, and resumes it after a short transfer.

use std::slice;

use libc::iovec;
use rustix::io::Errno;

use crate::io::{Op, Request};
use crate::iov;

/// The state of a request after a result of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferProgress {
    /// It is done.
    Done(Result<(), Errno>),
    /// Part of it remains, which the buffers now describe.
    Resume {
        /// Bytes that were transferred.
        moved: u64,
    },
}

/// The remaining buffers of a request; none for a request without data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    iov: *mut iovec,
    iov_count: u32,
    write: bool,
    /// Bytes that remain.
    remaining: u64,
}

impl Transfer {
    /// The buffers of a whole request.
    ///
    /// # Safety
    /// As for [`start_or_queue`](crate::IoBackend::start_or_queue); the promise then holds for the request's life.
    pub(crate) unsafe fn new(request: &Request) -> Self {
        let mut transfer = match request.op {
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => return Self::without_data(),
            Op::Read | Op::Write => Self {
                iov: request.iov,
                iov_count: request.iov_count,
                write: request.op == Op::Write,
                remaining: request.len,
            },
        };
        debug_assert_eq!(
            transfer
                .buffers_mut()
                .iter()
                .map(|b| b.iov_len as u64)
                .sum::<u64>(),
            transfer.remaining,
            "len is the sum of the buffers"
        );
        transfer
    }

    /// The remaining buffers.
    pub(crate) fn buffers(&self) -> &[iovec] {
        if self.iov_count == 0 {
            return &[];
        }
        // SAFETY: the submitter's promise in `start_or_queue`: the array is valid, and not accessed by others, until
        // completion.
        unsafe { slice::from_raw_parts(self.iov, self.iov_count as usize) }
    }

    /// A request without data: any success completes it.
    fn without_data() -> Self {
        Self {
            iov: std::ptr::null_mut(),
            iov_count: 0,
            write: false,
            remaining: 0,
        }
    }

    /// Applies a result of the kernel: a negative error number, or how many bytes were transferred.
    #[inline(always)]
    pub(crate) fn apply_result(&mut self, res: i64) -> TransferProgress {
        match u64::try_from(res) {
            Ok(moved) if moved >= self.remaining => TransferProgress::Done(Ok(())),
            Ok(moved) => self.finish_or_resume_short_transfer(moved),
            Err(_) => {
                let errno = i32::try_from(-res).map_or(Errno::IO, Errno::from_raw_os_error);
                TransferProgress::Done(Err(errno))
            }
        }
    }

    /// Handles a short transfer: end of file (zeroes the rest), no space (an error), or less than asked for (skips what is done).
    #[cold]
    fn finish_or_resume_short_transfer(&mut self, moved: u64) -> TransferProgress {
        if moved == 0 {
            if self.write {
                // The file has no space, and the kernel did not report an error.
                return TransferProgress::Done(Err(Errno::NOSPC));
            }
            // SAFETY: the submitter's promise in `start_or_queue`: the buffers are valid for writes until
            // the completion is reaped, and it has not been yet.
            unsafe { iov::zero_fill(self.buffers_mut()) };
            return TransferProgress::Done(Ok(()));
        }
        let skipped = iov::skip_bytes(self.buffers_mut(), moved);
        self.iov = self.iov.wrapping_add(skipped);
        self.iov_count = self
            .iov_count
            .saturating_sub(u32::try_from(skipped).unwrap_or(u32::MAX));
        self.remaining -= moved;
        if self.iov_count == 0 {
            // Only a wrong `len` gets here: bytes remain, but no buffer.
            return TransferProgress::Done(Err(Errno::IO));
        }
        TransferProgress::Resume { moved }
    }

    /// Whether it is a write; a request without data is none.
    pub(crate) fn is_write(&self) -> bool {
        self.write
    }

    /// Bytes that remain.
    pub(crate) fn remaining_bytes(&self) -> u64 {
        self.remaining
    }

    /// The address of the array of remaining buffers.
    pub(crate) fn iov_ptr(&self) -> *mut iovec {
        self.iov
    }

    /// Number of remaining buffers.
    pub(crate) fn iov_count(&self) -> u32 {
        self.iov_count
    }

    /// The buffer, if exactly one remains: it can be submitted without an array.
    pub(crate) fn single_buffer(&mut self) -> Option<iovec> {
        match *self.buffers_mut() {
            [buffer] => Some(buffer),
            _ => None,
        }
    }

    /// The remaining buffers, to be changed in place.
    fn buffers_mut(&mut self) -> &mut [iovec] {
        if self.iov_count == 0 {
            return &mut [];
        }
        // SAFETY: the submitter's promise in `start_or_queue`: the array is valid, unmoved, and ours to
        // change until the completion is reaped. A u32 fits a usize here.
        unsafe { slice::from_raw_parts_mut(self.iov, self.iov_count as usize) }
    }
}
