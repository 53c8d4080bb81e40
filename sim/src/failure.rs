//! A failure of the disk: which requests may have failed with it.

use std::ops::Range;

use crate::plan::Kind;

/// What the disk has failed to do.
#[derive(Clone, Debug)]
pub struct Failure {
    /// A read; else it is something that changes data, unless it is a flush.
    pub read: bool,
    /// A flush.
    pub flush: bool,
    /// Where.
    pub sectors: Range<u64>,
}

impl Failure {
    /// Whether a request of this kind, for these sectors, may be what has failed, or a part of it.
    #[must_use]
    pub fn may_be(&self, kind: Kind, (first, count): (u64, u64)) -> bool {
        let overlaps = first < self.sectors.end && self.sectors.start < first + count;
        match kind {
            Kind::Flush => self.flush,
            Kind::Read => self.read && overlaps,
            Kind::Write | Kind::Discard | Kind::WriteZeroes => !self.read && overlaps,
            Kind::GetId | Kind::Unknown => false,
        }
    }
}
