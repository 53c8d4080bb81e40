//! What is asked of an engine: one transfer or flush, and the refusal of it.

use std::os::fd::RawFd;

use libc::iovec;

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
    /// fdatasync(2): offset, buffers and length are ignored. Linux AIO needs
    /// [`supports_fdsync`](crate::LinuxAio::supports_fdsync) for it.
    Flush,
}

/// One request for [`LinuxAio::push`](crate::LinuxAio::push), or with a file of its own kind for
/// [`Uring::push`](crate::Uring::push).
#[derive(Clone, Copy, Debug)]
pub struct Io<F = RawFd> {
    /// What to do.
    pub op: Op,
    /// With which file.
    pub fd: F,
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

/// Refusal of a push: no record is free. The request was not taken; push it again after a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has no room for another request")]
pub struct Full;
