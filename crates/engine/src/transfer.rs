//! Progress of one request: from the kernel's result to what is left of it.

use std::slice;

use libc::iovec;
use rustix::io::Errno;

use crate::io::{Op, Request};
use crate::iov;

/// What to do with a request that the kernel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is done.
    Done(Result<(), Errno>),
    /// There is a rest; the buffers now describe it.
    Resume {
        /// Bytes by which it starts further on in the file.
        moved: u64,
    },
}

/// The buffers of a request, as far as they are not done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    iov: *mut iovec,
    iov_count: u32,
    write: bool,
    /// Bytes that are still to be moved.
    remaining: u64,
}

impl Transfer {
    /// All of a request.
    ///
    /// # Safety
    /// As for [`push`](crate::LinuxAio::push); the promise then holds for the request's life.
    pub(crate) unsafe fn new(request: &Request) -> Self {
        let mut transfer = match request.op {
            Op::Flush | Op::Discard | Op::WriteZeroes { .. } => return Self::nothing(),
            Op::Read | Op::Write => Self {
                iov: request.iov,
                iov_count: request.iov_count,
                write: request.op == Op::Write,
                remaining: request.len,
            },
        };
        debug_assert_eq!(
            transfer
                .buffers()
                .iter()
                .map(|b| b.iov_len as u64)
                .sum::<u64>(),
            transfer.remaining,
            "len is the sum of the buffers"
        );
        transfer
    }

    /// Its buffers, to look at.
    pub(crate) fn iovecs(&self) -> &[iovec] {
        if self.iov_count == 0 {
            return &[];
        }
        // SAFETY: the submitter's promise in `push`: the array is valid, and nobody else's, until
        // completion.
        unsafe { slice::from_raw_parts(self.iov, self.iov_count as usize) }
    }

    /// No data: done with any success.
    fn nothing() -> Self {
        Self {
            iov: std::ptr::null_mut(),
            iov_count: 0,
            write: false,
            remaining: 0,
        }
    }

    /// Takes what the kernel said: a negative error number, or how many bytes were moved.
    #[inline(always)]
    pub(crate) fn advance(&mut self, res: i64) -> Progress {
        match u64::try_from(res) {
            Ok(moved) if moved >= self.remaining => Progress::Done(Ok(())),
            Ok(moved) => self.fell_short(moved),
            Err(_) => {
                let errno = i32::try_from(-res).map_or(Errno::IO, Errno::from_raw_os_error);
                Progress::Done(Err(errno))
            }
        }
    }

    /// The kernel moved less than all that remained.
    #[cold]
    fn fell_short(&mut self, moved: u64) -> Progress {
        if moved == 0 {
            if self.write {
                // The file cannot take it, and said so without an error.
                return Progress::Done(Err(Errno::NOSPC));
            }
            // SAFETY: the submitter's promise in `push`: the buffers are valid for writes until
            // the completion is reaped, and it has not been yet.
            unsafe { iov::zero_fill(self.buffers()) };
            return Progress::Done(Ok(()));
        }
        let skipped = iov::advance(self.buffers(), moved);
        self.iov = self.iov.wrapping_add(skipped);
        self.iov_count = self
            .iov_count
            .saturating_sub(u32::try_from(skipped).unwrap_or(u32::MAX));
        self.remaining -= moved;
        if self.iov_count == 0 {
            // Only a wrong `len` gets here: there is a rest, but no buffer for it.
            return Progress::Done(Err(Errno::IO));
        }
        Progress::Resume { moved }
    }

    pub(crate) fn is_write(&self) -> bool {
        self.write
    }

    /// Bytes that are still to be moved.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Where the array is now.
    pub(crate) fn iov(&self) -> *mut iovec {
        self.iov
    }

    /// How many buffers there are now.
    pub(crate) fn iov_count(&self) -> u32 {
        self.iov_count
    }

    /// The buffer, if there is exactly one: it can go without its array.
    pub(crate) fn single(&mut self) -> Option<iovec> {
        match *self.buffers() {
            [buffer] => Some(buffer),
            _ => None,
        }
    }

    fn buffers(&mut self) -> &mut [iovec] {
        if self.iov_count == 0 {
            return &mut [];
        }
        // SAFETY: the submitter's promise in `push`: the array is valid, unmoved, and ours to
        // change until the completion is reaped. A u32 fits a usize here.
        unsafe { slice::from_raw_parts_mut(self.iov, self.iov_count as usize) }
    }
}
