//! One request: from what the submitter wants to the kernel's control block, and on from where a
//! short transfer ended.

use std::os::fd::RawFd;

use super::abi::{
    IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV,
    IOCB_FLAG_RESFD, Iocb, RWF_DSYNC,
};
use crate::io::{Io, Op};
use crate::transfer::{Progress, Transfer};

/// A request and its control block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) iocb: Iocb,
    pub(super) token: u64,
    transfer: Transfer,
}

impl Request {
    /// A control block for `io`; `slot` comes back in the event, `event_fd` is signalled.
    ///
    /// # Safety
    /// As for [`push`](super::LinuxAio::push); the promise then holds for this request's life.
    #[inline(always)]
    pub(super) unsafe fn new(io: &Io, slot: u32, event_fd: RawFd) -> Self {
        let mut request = Self {
            iocb: Iocb {
                data: u64::from(slot),
                fildes: io.fd.cast_unsigned(),
                flags: IOCB_FLAG_RESFD,
                resfd: event_fd.cast_unsigned(),
                ..Iocb::default()
            },
            token: io.token,
            // SAFETY: our caller promises the same.
            transfer: unsafe { Transfer::new(io) },
        };
        match io.op {
            // The kernel wants every other field of a flush to be zero.
            Op::Flush => request.iocb.opcode = IOCB_CMD_FDSYNC,
            Op::Read => request.aim(io.offset.cast_signed()),
            Op::Write { dsync } => {
                request.iocb.rw_flags = if dsync { RWF_DSYNC } else { 0 };
                request.aim(io.offset.cast_signed());
            }
        }
        request
    }

    /// The file.
    pub(super) fn fd(&self) -> RawFd {
        self.iocb.fildes.cast_signed()
    }

    /// Whether a read or write system call without flags does the same.
    pub(super) fn is_plain_transfer(&self) -> bool {
        self.iocb.opcode != IOCB_CMD_FDSYNC && self.iocb.rw_flags == 0
    }

    /// Bytes that are still to be moved.
    pub(super) fn remaining(&self) -> u64 {
        self.transfer.remaining()
    }

    /// Takes what the kernel said; the control block then describes the rest, if there is one.
    pub(super) fn advance(&mut self, res: i64) -> Progress {
        let progress = self.transfer.advance(res);
        if let Progress::Resume { moved } = progress {
            // The end of the request was accepted by the kernel: no overflow.
            self.aim(self.iocb.offset.wrapping_add_unsigned(moved));
        }
        progress
    }

    /// Points the control block at the buffers as they are now.
    #[inline(always)]
    fn aim(&mut self, offset: i64) {
        self.iocb.offset = offset;
        let write = self.transfer.is_write();
        // One buffer goes without its array: the kernel need not copy and check the array.
        if let Some(buffer) = self.transfer.single() {
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
            self.iocb.buf = self.transfer.iov() as u64;
            self.iocb.nbytes = u64::from(self.transfer.iov_count());
        }
    }
}
