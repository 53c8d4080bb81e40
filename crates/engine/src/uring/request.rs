//! The record of one io_uring request, from which its submission entry (SQE) is built: again for the rest after a short transfer.

use std::os::fd::RawFd;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use rustix::io::Errno;

use crate::io::{Op, Request};
use crate::transfer::{Transfer, TransferProgress};

/// A ring's name for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Its descriptor.
    Descriptor(RawFd),
    /// Its place in the ring's table, which saves the kernel the look-up of the descriptor.
    Registered(u32),
}

/// How often in a row a request that completes with `EAGAIN` or `EINTR` is submitted again. A kernel worker carries it out then
/// (`IOSQE_ASYNC`), which waits for what is short.
const MAX_RETRIES: u8 = 16;

/// Most bytes that the kernel transfers at once (`MAX_RW_COUNT`). A single buffer whose length does not fit an entry is cut to
/// it.
const MAX_RW_COUNT: u32 = 0x7fff_f000;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) token: u64,
    transfer: Transfer,
    op: Op,
    fua: bool,
    offset: u64,
    /// Bytes of a request without data.
    len: u64,
    file: File,
    /// The place of the registered memory that contains all its buffers.
    pub(super) place: Option<u16>,
    retries: u8,
}

/// The next step of a request after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Report the result: nothing remains.
    Done(Result<(), Errno>),
    /// Submit the rest.
    Resume,
    /// Submit all of it again.
    Retry,
}

impl Record {
    /// The record of a whole request to `file`.
    ///
    /// # Safety
    /// As for [`start_or_queue`](crate::IoBackend::start_or_queue); the promise then holds for this request's life.
    pub(super) unsafe fn new(file: File, request: &Request) -> Self {
        Self {
            token: request.token,
            // SAFETY: our caller promises the same.
            transfer: unsafe { Transfer::new(request) },
            op: request.op,
            fua: request.fua,
            // All ones would mean the position of the file. Both are refused by the kernel.
            offset: request.offset.min(u64::MAX - 1),
            len: request.len,
            file,
            place: None,
            retries: 0,
        }
    }

    /// The buffers of a transfer.
    #[inline]
    pub(super) fn buffers(&self) -> &[libc::iovec] {
        self.transfer.buffers()
    }

    /// Whether the kernel passes the request to one of its worker threads in any case.
    #[inline]
    pub(super) fn occupies_worker(&self) -> bool {
        !matches!(self.op, Op::Read | Op::Write)
    }

    /// Applies a result of the kernel.
    pub(super) fn apply_result(&mut self, res: i32) -> NextStep {
        let again = [Errno::AGAIN, Errno::INTR].map(|errno| -errno.raw_os_error());
        if again.contains(&res) && self.retries < MAX_RETRIES {
            self.retries += 1;
            return NextStep::Retry;
        }
        match self.transfer.apply_result(res.into()) {
            TransferProgress::Done(result) => NextStep::Done(result),
            TransferProgress::Resume { moved } => {
                // The end of the request was accepted by the kernel: no overflow.
                self.offset = self.offset.wrapping_add(moved);
                // Progress resets the limit of retries.
                self.retries = 0;
                NextStep::Resume
            }
        }
    }

    /// The submission entry for what remains of the request. The completion has `slot`.
    #[inline]
    pub(super) fn submission_entry(&mut self, slot: u32) -> squeue::Entry {
        let (fd, flags) = match self.file {
            File::Descriptor(fd) => (fd, squeue::Flags::empty()),
            // The field is the descriptor's; places are far below its sign bit.
            File::Registered(index) => (index.cast_signed(), squeue::Flags::FIXED_FILE),
        };
        let flags = match self.retries {
            0 => flags,
            _ => flags | squeue::Flags::ASYNC,
        };
        self.operation_entry(fd).flags(flags).user_data(slot.into())
    }

    /// The submission entry of the operation on `fd`, a descriptor or a place in the table; flags and user data are not set.
    fn operation_entry(&mut self, fd: i32) -> squeue::Entry {
        let (file, offset) = (Fd(fd), self.offset);
        if let Some(place) = self.place
            && let Some(entry) = self.registered_buffer_entry(file, place)
        {
            return entry;
        }
        match self.op {
            Op::Read => match self.transfer.single_buffer() {
                // One buffer goes without its array: the kernel need not copy and check the array.
                Some(buffer) => {
                    opcode::Read::new(file, buffer.iov_base.cast(), capped_buffer_len(&buffer))
                        .offset(offset)
                        .build()
                }
                None => {
                    opcode::Readv::new(file, self.transfer.iov_ptr(), self.transfer.iov_count())
                        .offset(offset)
                        .build()
                }
            },
            Op::Write => match self.transfer.single_buffer() {
                Some(buffer) => opcode::Write::new(
                    file,
                    buffer.iov_base.cast_const().cast(),
                    capped_buffer_len(&buffer),
                )
                .offset(offset)
                .rw_flags(self.rw_flags())
                .build(),
                None => {
                    opcode::Writev::new(file, self.transfer.iov_ptr(), self.transfer.iov_count())
                        .offset(offset)
                        .rw_flags(self.rw_flags())
                        .build()
                }
            },
            Op::Flush => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Op::WriteZeroes { unmap } => opcode::Fallocate::new(file, self.len)
                .offset(offset)
                .mode(match unmap {
                    true => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    false => libc::FALLOC_FL_ZERO_RANGE,
                })
                .build(),
            Op::Discard => discard_entry(fd, offset, self.len),
        }
    }

    /// The flags of a write: `RWF_DSYNC` for one that is durable when it completes.
    fn rw_flags(&self) -> i32 {
        if self.fua { libc::RWF_DSYNC } else { 0 }
    }
}

impl Record {
    /// The submission entry of a transfer with registered buffers; `None` for an operation without data.
    fn registered_buffer_entry(&mut self, file: Fd, place: u16) -> Option<squeue::Entry> {
        let (single, offset) = (self.transfer.single_buffer(), self.offset);
        let (iov, count) = (self.transfer.iov_ptr(), self.transfer.iov_count());
        Some(match (self.op, single) {
            (Op::Read, Some(buffer)) => opcode::ReadFixed::new(
                file,
                buffer.iov_base.cast(),
                capped_buffer_len(&buffer),
                place,
            )
            .offset(offset)
            .build(),
            (Op::Read, None) => opcode::ReadvFixed::new(file, iov, count, place)
                .offset(offset)
                .build(),
            (Op::Write, Some(buffer)) => {
                let data = buffer.iov_base.cast_const().cast();
                opcode::WriteFixed::new(file, data, capped_buffer_len(&buffer), place)
                    .offset(offset)
                    .rw_flags(self.rw_flags())
                    .build()
            }
            (Op::Write, None) => opcode::WritevFixed::new(file, iov, count, place)
                .offset(offset)
                .rw_flags(self.rw_flags())
                .build(),
            _ => return None,
        })
    }
}

/// The length of a single buffer in a submission entry, cut to what fits.
fn capped_buffer_len(buffer: &libc::iovec) -> u32 {
    u32::try_from(buffer.iov_len).unwrap_or(MAX_RW_COUNT)
}

/// The submission entry of a discard: `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)` of `linux/blkdev.h`. The range is in
/// fields that the crate's builder does not offer.
fn discard_entry(fd: i32, start: u64, len: u64) -> squeue::Entry {
    const BLOCK_URING_CMD_DISCARD: u64 = 0x1200;
    let mut words = [0_u64; 8];
    words[0] = u64::from(opcode::UringCmd16::CODE) | u64::from(fd.cast_unsigned()) << 32;
    words[1] = BLOCK_URING_CMD_DISCARD;
    words[2] = start;
    words[6] = len;
    // SAFETY: an entry is `struct io_uring_sqe` of `linux/io_uring.h` and nothing else: 64 bytes
    // that the kernel reads, any of which are valid. `transmute` checks the size.
    unsafe { std::mem::transmute::<[u64; 8], squeue::Entry>(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the submission entry, `sqe->flags` of `linux/io_uring.h`.
    fn flags(record: &mut Record) -> u8 {
        // SAFETY: an entry is 64 bytes, which are all initialised.
        let bytes: [u8; 64] = unsafe { std::mem::transmute(record.submission_entry(0)) };
        bytes[1]
    }

    #[test]
    fn request_that_the_kernel_returns_undone_is_carried_out_by_a_worker() {
        const IOSQE_FIXED_FILE: u8 = 1;
        const IOSQE_ASYNC: u8 = 1 << 4;
        let flush = Request::without_data(Op::Flush, 0, 0, 0);
        for (file, plain) in [
            (File::Descriptor(3), 0),
            (File::Registered(0), IOSQE_FIXED_FILE),
        ] {
            // SAFETY: it has no buffers.
            let mut record = unsafe { Record::new(file, &flush) };
            assert_eq!(flags(&mut record), plain);
            for errno in [Errno::AGAIN, Errno::INTR] {
                let again = record.apply_result(-errno.raw_os_error());
                assert_eq!(again, NextStep::Retry);
                assert_eq!(flags(&mut record), plain | IOSQE_ASYNC);
            }
        }
    }
}
