//! UNMAP: ranges that are no longer needed.
//!
//! They become discards, not zeroes: a discard that a disk cannot carry out does nothing, where zeroes
//! would be written out, for terabytes if that is what a guest's `mkfs` gives back. So nothing is
//! promised about what is read afterwards (LBPRZ is 0). Who wants zeroes says WRITE SAME.

use block::Op;

use super::{Extent, Next, request_without_data};

pub(crate) struct Unmap {
    /// Ranges that are left, the last one first.
    ranges: Vec<Extent>,
}

impl Unmap {
    /// In the order of the list. All of them together are no more than the node takes at once.
    pub fn new(mut ranges: Vec<Extent>) -> Self {
        ranges.retain(|range| range.len > 0);
        ranges.reverse();
        Unmap { ranges }
    }

    pub fn next(&mut self) -> Next {
        match self.ranges.pop() {
            Some(range) => Next::Submit(request_without_data(Op::Discard, false, range)),
            None => Next::Finished,
        }
    }
}
