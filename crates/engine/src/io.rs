//! Requests to a backend (operation, range and buffers), and the error of a backend that has no room for one.

use libc::iovec;
use telemetry::queue::RequestKind;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `len` bytes at `offset` into the segments; what lies past the end of a file reads as zeroes.
    Read,
    /// Write the segments to `offset`. With `fua` the data is on stable storage when it completes.
    Write,
    /// All writes that completed before are on stable storage when it completes (fdatasync(2)).
    Flush,
    /// The data of the range is no longer needed. May do nothing.
    Discard,
    /// The range reads as zeroes afterwards, on stable storage with `fua`.
    WriteZeroes {
        /// The operation may free the space.
        unmap: bool,
    },
}

impl Op {
    /// The type of a request in tracepoints, in the numbers of VIRTIO for all devices: `VIRTIO_BLK_T_*` (section 5.2.6).
    #[must_use]
    pub fn virtio_request_type(self) -> u32 {
        match self {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 4,
            Op::Discard => 11,
            Op::WriteZeroes { .. } => 13,
        }
    }

    /// The kind of the request in statistics.
    #[inline]
    #[must_use]
    pub fn request_kind(self) -> RequestKind {
        match self {
            Op::Read => RequestKind::Read,
            Op::Write | Op::WriteZeroes { .. } => RequestKind::Write,
            Op::Flush => RequestKind::Flush,
            Op::Discard => RequestKind::Unmap,
        }
    }

    /// The same operation, which may free space only if it could before and `unmap` permits that.
    #[inline]
    #[must_use]
    pub fn limit_unmap(self, unmap: bool) -> Op {
        match self {
            Op::WriteZeroes { unmap: asked } => Op::WriteZeroes {
                unmap: asked && unmap,
            },
            op => op,
        }
    }

    /// Whether both are the same operation, apart from `unmap`.
    #[must_use]
    pub fn is_same_operation(self, other: Op) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// A request, from its source to the backend that carries it out. Layers between the two change the offset.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Force unit access: stable when complete (`RWF_DSYNC`). For writes and write-zeroes.
    pub fua: bool,
    /// First byte. The submitter has checked that the range lies within the disk.
    pub offset: u64,
    /// Bytes; for reads and writes the sum of the segments, at most 2^32 - 1. The kernel moves at most 0x7ffff000 at once;
    /// more takes several rounds.
    pub len: u64,
    /// Data segments in host memory, for reads and writes; may dangle if there are none. A backend may change the list until
    /// the request completes. After an error the list has the segments that were not transferred.
    pub iov: *mut iovec,
    /// Number of segments; the kernel takes up to 1024 (`UIO_MAXIOV`).
    pub iov_count: u32,
    /// A number that the submitter chooses, and that the completion has.
    pub token: u64,
}

impl Request {
    /// A request without segments, for `len` bytes at this offset.
    #[must_use]
    pub fn without_data(op: Op, offset: u64, len: u64, token: u64) -> Self {
        Request {
            op,
            fua: false,
            offset,
            len,
            iov: std::ptr::null_mut(),
            iov_count: 0,
            token,
        }
    }
}

/// Refusal of a request: no record is free. The request was not taken; push it again after a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has no room for another request")]
pub struct Full;
