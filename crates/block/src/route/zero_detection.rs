//! Zero detection (`detect-zeroes`): writes whose data are all zeroes are carried out as write zeroes.
//!
//! A guest may change its buffer while the write is in flight. The data are read once here, and not copied: a write that counts
//! as zeroes makes no further use of the buffer, and each of its bytes was zero when it was read; any other write takes the
//! buffer as it is at the transfer, as without detection. So each byte on the disk is one that the guest had there during the
//! request.

use std::rc::Rc;

use engine::{Errno, Op, Request};

use super::task::{LocalFuture, TaskContext, TaskNode};
use super::{OpHandler, Route};

/// What becomes of writes of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectZeroes {
    /// The range is zeroed, and keeps its space where the disk can do that.
    On,
    /// The range is zeroed, and its space is freed.
    Unmap,
}

/// The async task of a node's writes.
struct ZeroDetectionTask {
    below: Route,
    mode: DetectZeroes,
}

impl Route {
    /// The route with zero detection in front of its writes.
    pub(crate) fn detecting_zeroes(self, mode: DetectZeroes) -> Route {
        let task = ZeroDetectionTask {
            below: self.clone(),
            mode,
        };
        Route {
            write: OpHandler::Task(Rc::new(task)),
            ..self
        }
    }
}

impl TaskNode for ZeroDetectionTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        let write = self.below.needed_buffer_bytes(request);
        write.max(
            self.below
                .needed_buffer_bytes(&self.to_write_zeroes(*request)),
        )
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            // SAFETY: the source keeps the segments until the task is complete.
            let request = match unsafe { has_only_zeroes(&request) } {
                true => self.to_write_zeroes(request),
                false => request,
            };
            cx.run_on_route(&self.below, request).await
        })
    }
}

impl ZeroDetectionTask {
    /// Translates a write into one that needs no data.
    fn to_write_zeroes(&self, write: Request) -> Request {
        let unmap = self.mode == DetectZeroes::Unmap;
        let zeroes = Op::WriteZeroes { unmap };
        Request {
            fua: write.fua,
            ..Request::without_data(zeroes, write.offset, write.len, write.token)
        }
    }
}

/// Whether a write has data, and all of them are zero.
///
/// # Safety
/// The list of segments and the memory that it names are valid.
unsafe fn has_only_zeroes(write: &Request) -> bool {
    (0..write.iov_count as usize).all(|index| {
        // SAFETY: our caller promises it.
        unsafe {
            let segment = *write.iov.add(index);
            is_zero(segment.iov_base.cast(), segment.iov_len)
        }
    }) && write.len > 0
}

/// Whether all bytes of a piece of memory are zero. Reads each of them at most once, since another processor may change them.
///
/// # Safety
/// So many bytes there are readable.
pub(crate) unsafe fn is_zero(memory: *const u8, len: usize) -> bool {
    const WORD: usize = size_of::<u64>();
    let head = memory.align_offset(WORD).min(len);
    let (words, tail) = ((len - head) / WORD, (len - head) % WORD);
    // SAFETY: the three parts are the memory that our caller vouches for, and the words are aligned.
    unsafe {
        let bytes_are_zero = |at: usize, count: usize| {
            (at..at + count).all(|at| memory.add(at).read_volatile() == 0)
        };
        let first = memory.add(head).cast::<u64>();
        bytes_are_zero(0, head)
            && (0..words).all(|index| first.add(index).read_volatile() == 0)
            && bytes_are_zero(len - tail, tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_in_any_of_many_segments_is_found() {
        const LEN: usize = 1000;
        let mut memory = [0u8; LEN];
        let base = memory.as_mut_ptr();
        let mut iov: Vec<_> = (0..LEN)
            .map(|at| libc::iovec {
                iov_base: base.wrapping_add(at).cast(),
                iov_len: 1,
            })
            .collect();
        let write = Request {
            iov: iov.as_mut_ptr(),
            iov_count: u32::try_from(LEN).unwrap(),
            ..Request::without_data(Op::Write, 0, LEN as u64, 0)
        };
        // SAFETY: list and memory outlive the request, and only this accesses the memory.
        unsafe {
            assert!(has_only_zeroes(&write));
            for at in 0..LEN {
                base.add(at).write(0x80);
                assert!(!has_only_zeroes(&write), "{at}");
                base.add(at).write(0);
            }
        }
    }

    #[test]
    fn a_single_bit_anywhere_is_found() {
        let mut memory = [0u8; 64];
        for start in 0..16 {
            for end in start..64 {
                for at in 0..64 {
                    memory[at] = 0x10;
                    let part = &memory[start..end];
                    // SAFETY: it is a slice.
                    let found = unsafe { is_zero(part.as_ptr(), part.len()) };
                    assert_eq!(found, !(start..end).contains(&at), "{start}..{end}, {at}");
                    memory[at] = 0;
                }
            }
        }
    }
}
