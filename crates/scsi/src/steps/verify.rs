//! VERIFY, and WRITE AND VERIFY: reads blocks and compares them.

use block::Op;

use super::{Extent, Next, STEP_BYTES, StepContext, step_len, transfer};
use crate::segments::{List, Segments};
use crate::sense::Sense;

/// The kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// None: the blocks must be readable.
    Medium,
    /// All blocks with the initiator's data.
    Data,
    /// Each block with one block of the initiator's.
    Block,
}

pub(crate) struct Verify {
    extent: Extent,
    how: Comparison,
    block: usize,
    write: Write,
    done: u64,
    /// Bytes of the read in flight.
    reading: usize,
}

/// Whether the data is written before the comparison.
enum Write {
    No,
    First,
    /// It is being, or was, written. The request may change the list, so this is a copy.
    Submitted(List),
}

impl Verify {
    pub fn new(extent: Extent, how: Comparison, block: u32, write: bool) -> Self {
        Verify {
            extent,
            how,
            block: block as usize,
            write: if write { Write::First } else { Write::No },
            done: 0,
            reading: 0,
        }
    }

    pub fn next(&mut self, io: &mut StepContext<'_>) -> Next {
        if matches!(self.write, Write::First) {
            self.write = Write::Submitted(io.segments.list_copy());
            let mut segments = *io.segments;
            segments.truncate(self.extent.len);
            return Next::Submit(transfer(Op::Write, true, self.extent, &segments));
        }
        if let Write::Submitted(copy) = &mut self.write {
            *io.segments = Segments::by_copy(copy, 0, self.extent.len);
        }
        if let Some(offset) = self.differs(io) {
            return Next::Failed(Sense::miscompare(offset));
        }
        self.done += self.reading as u64;
        let left = self.extent.len - self.done;
        if left == 0 {
            return Next::Finished;
        }
        self.reading = step_len(left, STEP_BYTES);
        io.buffer.reserve(self.reading);
        let offset = self.extent.offset + self.done;
        Next::Submit(io.buffer_request(Op::Read, false, offset, self.reading))
    }

    /// Whether the write is in flight.
    pub fn writes(&self) -> bool {
        self.reading == 0 && !matches!(self.write, Write::No)
    }

    /// The first offset at which the initiator's data differs from the blocks that were read.
    fn differs(&self, io: &mut StepContext<'_>) -> Option<u64> {
        let read = &io.buffer.bytes()[..self.reading];
        match self.how {
            Comparison::Medium => None,
            Comparison::Data => io
                .segments
                .differ(self.done, read)
                .map(|at| self.done + at as u64),
            Comparison::Block => read
                .chunks(self.block)
                .find_map(|block| io.segments.differ(0, block))
                .map(|at| at as u64),
        }
    }
}
