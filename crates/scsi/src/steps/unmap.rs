//! UNMAP: discards the ranges of the list on the node, one after the other.
//!
//! They become discards, not zeroes: a disk that cannot discard does nothing, whereas zeroes
//! would be written out, for terabytes if a guest's `mkfs` unmaps the whole disk. So the
//! contents of unmapped blocks are undefined (LBPRZ is 0). WRITE SAME guarantees zeroes.

use block::Op;

use super::{Extent, NextStep, request_without_data};

pub(crate) struct Unmap {
    /// Remaining ranges, the last one first.
    ranges: Vec<Extent>,
}

impl Unmap {
    /// Unmaps ranges in the order of the list. Their sum must not exceed the node's limit.
    pub fn new(mut ranges: Vec<Extent>) -> Self {
        ranges.retain(|range| range.len > 0);
        ranges.reverse();
        Unmap { ranges }
    }

    /// Discards the next range, if any is left.
    pub fn next(&mut self) -> NextStep {
        match self.ranges.pop() {
            Some(range) => NextStep::Submit(request_without_data(Op::Discard, false, range)),
            None => NextStep::Finished,
        }
    }
}
