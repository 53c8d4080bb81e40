//! UNMAP: ranges that are no longer needed.
//!
//! They become discards, not zeroes: a discard that a disk cannot carry out does nothing, where zeroes
//! would be written out, for terabytes if that is what a guest's `mkfs` gives back. So nothing is
//! promised about what is read afterwards (LBPRZ is 0). Who wants zeroes says WRITE SAME.

use block::Op;

use super::{Extent, Io, Next, plain};

pub(crate) struct Unmap {
    /// Ranges that are left, the last one first.
    ranges: Vec<Extent>,
    /// The most bytes in one step.
    most: u64,
}

impl Unmap {
    /// In the order of the list.
    pub fn new(mut ranges: Vec<Extent>, most: u64) -> Self {
        ranges.reverse();
        Unmap { ranges, most }
    }

    pub fn next(&mut self, _io: &mut Io<'_>) -> Next {
        loop {
            let Some(range) = self.ranges.last_mut() else {
                return Next::Finished;
            };
            let len = range.len.min(self.most);
            if len == 0 {
                self.ranges.pop();
                continue;
            }
            let part = Extent {
                offset: range.offset,
                len,
            };
            range.offset += len;
            range.len -= len;
            return Next::Submit(plain(Op::Discard, false, part));
        }
    }
}
