//! What a device asks of a node.

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `len` bytes at `offset` into the segments; past the end of a file that has shrunk: zeroes.
    Read,
    /// Write the segments to `offset`. With `fua` the data is on stable storage when it completes.
    Write,
    /// All writes that completed before are on stable storage when it completes.
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
    /// Whether both ask for the same, but for its details.
    #[must_use]
    pub fn is_kind_of(self, other: Op) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// One request. The submitter has checked that the range lies within the node.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Force unit access: stable when complete. For writes and write-zeroes.
    pub fua: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes; for reads and writes the sum of the segments, at most 2^32 - 1.
    pub len: u64,
    /// Data segments in host memory, for reads and writes. The engine may change the list itself
    /// (not what it points to, but for reads) until the request completes. After an error the segments are those that are
    /// left: what is missing at their beginning was transferred.
    pub iov: *mut libc::iovec,
    /// How many segments.
    pub iov_count: u32,
    /// The submitter's name for it, given back with its completion.
    pub token: u64,
}
