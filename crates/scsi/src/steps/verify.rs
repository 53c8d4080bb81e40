//! VERIFY, and WRITE AND VERIFY: what is on the medium is read, and compared.

use block::Op;

use super::{Extent, Next, STEP_BYTES, StepContext, step_len, transfer};
use crate::segments::{List, Segments};
use crate::sense::Sense;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Nothing: it must be readable.
    Medium,
    /// Each byte with the initiator's.
    Data,
    /// Each block with the one block of the initiator's.
    Block,
}

pub(crate) struct Verify {
    extent: Extent,
    how: Comparison,
    block: usize,
    /// The data is to be written before; or is being written, and this is a copy of its list.
    write: Write,
    done: u64,
    /// So many bytes are being read.
    reading: usize,
}

enum Write {
    No,
    First,
    Under(List),
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
            self.write = Write::Under(io.segments.list_copy());
            let mut segments = *io.segments;
            segments.truncate(self.extent.len);
            return Next::Submit(transfer(Op::Write, true, self.extent, &segments));
        }
        if let Write::Under(copy) = &mut self.write {
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

    /// Nothing is read yet, and data is written before.
    pub fn writes(&self) -> bool {
        self.reading == 0 && !matches!(self.write, Write::No)
    }

    /// Where the initiator's data differs from what was just read.
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
