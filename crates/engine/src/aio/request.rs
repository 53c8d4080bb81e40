//! One request: from what the submitter wants to the kernel's control block, and on from where a
//! short transfer ended.

use std::os::fd::RawFd;
use std::slice;

use libc::iovec;
use rustix::io::Errno;

use super::abi::{
    IOCB_CMD_FDSYNC, IOCB_CMD_PREAD, IOCB_CMD_PREADV, IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV,
    IOCB_FLAG_RESFD, Iocb, RWF_DSYNC,
};
use super::iov;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read; what lies past the end of the file reads as zeros.
    Read,
    /// Write.
    Write {
        /// The data is durable when the write completes (`RWF_DSYNC`, what disks call FUA).
        dsync: bool,
    },
    /// fdatasync(2): offset, buffers and length are ignored. Needs
    /// [`supports_fdsync`](super::LinuxAio::supports_fdsync).
    Flush,
}

/// One request for [`push`](super::LinuxAio::push).
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// With which file.
    pub fd: RawFd,
    /// From where in the file, bytes; over `i64::MAX` the kernel says `EINVAL`.
    pub offset: u64,
    /// The buffers: `iov_count` of them, which the engine may trim in place when a transfer was
    /// short. May be dangling if there are none.
    pub iov: *mut iovec,
    /// How many buffers; over 1024 (`UIO_MAXIOV`) the kernel says `EINVAL`.
    pub iov_count: u32,
    /// Sum of the buffers' lengths, bytes. The kernel moves at most 0x7ffff000 at once; more
    /// takes several rounds.
    pub len: u64,
    /// The submitter's name for the request.
    pub token: u64,
}

/// What to do with a request that the kernel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is done.
    Done(Result<(), Errno>),
    /// There is a rest; the control block now describes it.
    Resume,
}

/// A request and its control block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) iocb: Iocb,
    pub(super) token: u64,
    iov: *mut iovec,
    iov_count: u32,
    /// Bytes that are still to be moved.
    remaining: u64,
}

impl Request {
    /// A control block for `io`; `slot` comes back in the event, `event_fd` is signalled.
    ///
    /// # Safety
    /// As for [`push`](super::LinuxAio::push); the promise then holds for this request's life.
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
            iov: io.iov,
            iov_count: io.iov_count,
            remaining: io.len,
        };
        match io.op {
            Op::Flush => {
                // The kernel wants every other field of a flush to be zero.
                request.iocb.opcode = IOCB_CMD_FDSYNC;
                request.iov_count = 0;
                request.remaining = 0;
            }
            Op::Read => request.aim(false, io.offset.cast_signed()),
            Op::Write { dsync } => {
                request.iocb.rw_flags = if dsync { RWF_DSYNC } else { 0 };
                request.aim(true, io.offset.cast_signed());
            }
        }
        debug_assert_eq!(
            request
                .buffers()
                .iter()
                .map(|b| b.iov_len as u64)
                .sum::<u64>(),
            request.remaining,
            "len is the sum of the buffers"
        );
        request
    }

    /// Takes what the kernel said: a negative error number, or how many bytes were moved.
    pub(super) fn advance(&mut self, res: i64) -> Progress {
        let Ok(done) = u64::try_from(res) else {
            let errno = i32::try_from(-res).map_or(Errno::IO, Errno::from_raw_os_error);
            return Progress::Done(Err(errno));
        };
        if done >= self.remaining {
            return Progress::Done(Ok(()));
        }
        if done == 0 {
            if self.is_write() {
                // The file cannot take it, and said so without an error.
                return Progress::Done(Err(Errno::NOSPC));
            }
            // SAFETY: the submitter's promise in `push`: the buffers are valid for writes until
            // the completion is reaped, and it has not been yet.
            unsafe { iov::zero_fill(self.buffers()) };
            return Progress::Done(Ok(()));
        }
        let skipped = iov::advance(self.buffers(), done);
        self.iov = self.iov.wrapping_add(skipped);
        self.iov_count = self
            .iov_count
            .saturating_sub(u32::try_from(skipped).unwrap_or(u32::MAX));
        self.remaining -= done;
        if self.iov_count == 0 {
            // Only a wrong `len` gets here: there is a rest, but no buffer for it.
            return Progress::Done(Err(Errno::IO));
        }
        // Below `remaining`, and offset + remaining was accepted by the kernel: no overflow.
        self.aim(self.is_write(), self.iocb.offset.wrapping_add(res));
        Progress::Resume
    }

    /// Points the control block at the buffers as they are now.
    fn aim(&mut self, write: bool, offset: i64) {
        self.iocb.offset = offset;
        // One buffer goes without its array: the kernel need not copy and check the array.
        if let [buffer] = *self.buffers() {
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
            self.iocb.buf = self.iov as u64;
            self.iocb.nbytes = u64::from(self.iov_count);
        }
    }

    fn is_write(&self) -> bool {
        matches!(self.iocb.opcode, IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV)
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
