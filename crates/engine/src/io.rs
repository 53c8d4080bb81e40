//! Requests: what is asked of a backend, and the refusal of it.

use libc::iovec;
use telemetry::queue::Kind;

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
        /// The space may be given back.
        unmap: bool,
    },
}

impl Op {
    /// The type of a request in tracepoints, in the numbers of VIRTIO for all devices: `VIRTIO_BLK_T_*` (section 5.2.6).
    #[must_use]
    pub fn request_type(self) -> u32 {
        match self {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 4,
            Op::Discard => 11,
            Op::WriteZeroes { .. } => 13,
        }
    }

    /// The kind that a request counts as.
    #[inline]
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Op::Read => Kind::Read,
            Op::Write | Op::WriteZeroes { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard => Kind::Unmap,
        }
    }

    /// Whether both ask for the same, but for its details.
    #[must_use]
    pub fn is_kind_of(self, other: Op) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// One request, from a source of requests to the backend that carries it out. Layers between the two change the offset.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Force unit access: stable when complete (`RWF_DSYNC`). For writes and write-zeroes.
    pub fua: bool,
    /// First byte. The submitter has checked that the range lies within the disk.
    pub offset: u64,
    /// Bytes; for reads and writes the sum of the segments, at most 2^32 - 1. The kernel moves at most 0x7ffff000 at once;
    /// more takes several rounds.
    pub len: u64,
    /// Data segments in host memory, for reads and writes; may dangle if there are none. A backend may change the list itself
    /// (not what it points to, but for reads) until the request completes. After an error the segments are those that are
    /// left: what is missing at their beginning was transferred.
    pub iov: *mut iovec,
    /// How many segments; the kernel takes up to 1024 (`UIO_MAXIOV`).
    pub iov_count: u32,
    /// The submitter's name for it, given back with its completion.
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

/// Refusal of a push: no record is free. The request was not taken; push it again after a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has no room for another request")]
pub struct Full;
