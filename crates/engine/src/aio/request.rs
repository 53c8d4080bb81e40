//! The record of one Linux AIO request: its control block (`struct iocb`), and what remains of it after a short transfer.

use std::os::fd::RawFd;

use super::abi::{
    IOCB_CMD_FDSYNC, IOCB_CMD_NOOP, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE,
    IOCB_CMD_PWRITEV, IOCB_FLAG_RESFD, Iocb, RWF_DSYNC,
};
use crate::io::{Op, Request};
use crate::transfer::{Transfer, TransferProgress};

/// A request with its control block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) iocb: Iocb,
    pub(super) token: u64,
    transfer: Transfer,
}

impl Record {
    /// A control block for a request to file `fd`; `slot` comes back in the event, `event_fd` is signalled.
    ///
    /// # Safety
    /// As for [`start_or_queue`](crate::IoBackend::start_or_queue); the promise then holds for this request's life.
    #[inline(always)]
    pub(super) unsafe fn new(fd: RawFd, request: &Request, slot: u32, event_fd: RawFd) -> Self {
        let mut record = Self {
            iocb: Iocb {
                data: u64::from(slot),
                fildes: fd.cast_unsigned(),
                flags: IOCB_FLAG_RESFD,
                resfd: event_fd.cast_unsigned(),
                ..Iocb::default()
            },
            token: request.token,
            // SAFETY: our caller promises the same.
            transfer: unsafe { Transfer::new(request) },
        };
        match request.op {
            // The kernel wants every other field of a flush to be zero.
            Op::Flush => record.iocb.opcode = IOCB_CMD_FDSYNC,
            Op::Read => record.point_at_remaining(request.offset.cast_signed()),
            Op::Write => {
                record.iocb.rw_flags = if request.fua { RWF_DSYNC } else { 0 };
                record.point_at_remaining(request.offset.cast_signed());
            }
            // The kernel refuses it (EINVAL).
            Op::Discard | Op::WriteZeroes { .. } => record.iocb.opcode = IOCB_CMD_NOOP,
        }
        record
    }

    /// The file.
    pub(super) fn fd(&self) -> RawFd {
        self.iocb.fildes.cast_signed()
    }

    /// Whether it is a read or write for which a system call without flags does the same.
    pub(super) fn is_transfer_without_flags(&self) -> bool {
        self.iocb.opcode != IOCB_CMD_FDSYNC && self.iocb.rw_flags == 0
    }

    /// Bytes that remain.
    pub(super) fn remaining_bytes(&self) -> u64 {
        self.transfer.remaining_bytes()
    }

    /// Applies a result of the kernel. The control block then describes what remains, if anything does.
    pub(super) fn apply_result(&mut self, res: i64) -> TransferProgress {
        let progress = self.transfer.apply_result(res);
        if let TransferProgress::Resume { moved } = progress {
            // The end of the request was accepted by the kernel: no overflow.
            self.point_at_remaining(self.iocb.offset.wrapping_add_unsigned(moved));
        }
        progress
    }

    /// Points the control block to the remaining buffers, which begin at this offset of the file.
    #[inline(always)]
    fn point_at_remaining(&mut self, offset: i64) {
        self.iocb.offset = offset;
        let write = self.transfer.is_write();
        // One buffer goes without its array: the kernel need not copy and check the array.
        if let Some(buffer) = self.transfer.single_buffer() {
            self.iocb.opcode = if write {
                IOCB_CMD_PWRITE
            } else {
                IOCB_CMD_PREAD
            };
            self.iocb.buf = buffer.iov_base as u64;
            self.iocb.nbytes = buffer.iov_len as u64;
        } else {
            self.iocb.opcode = if write {
                IOCB_CMD_PWRITEV
            } else {
                IOCB_CMD_PREADV
            };
            self.iocb.buf = self.transfer.iov_ptr() as u64;
            self.iocb.nbytes = u64::from(self.transfer.iov_count());
        }
    }
}
