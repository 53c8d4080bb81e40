//! VERIFY and WRITE AND VERIFY: the second writes its data first. Both then read the blocks, and compare them with the data if there
//! is any.

use block::Op;

use super::{Extent, NextStep, STEP_BYTES, StepContext, data_request, next_step_len};
use crate::segments::{SegmentListCopy, Segments};
use crate::sense::Sense;

/// The kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyComparison {
    /// None: the blocks must be readable.
    Medium,
    /// All blocks with the initiator's data.
    Data,
    /// Each block with one block of the initiator's.
    Block,
}

pub(crate) struct Verify {
    extent: Extent,
    comparison: VerifyComparison,
    block: usize,
    write: VerifyWriteState,
    done: u64,
    /// Bytes of the read in flight.
    reading: usize,
}

/// Whether the data is written before the comparison.
enum VerifyWriteState {
    No,
    First,
    /// It is being, or was, written. The request may change the list, so this is a copy.
    Submitted(SegmentListCopy),
}

impl Verify {
    /// A comparison of this extent, whose blocks have `block` bytes, after a write if `write` is set.
    pub fn new(extent: Extent, comparison: VerifyComparison, block: u32, write: bool) -> Self {
        Verify {
            extent,
            comparison,
            block: block as usize,
            write: if write {
                VerifyWriteState::First
            } else {
                VerifyWriteState::No
            },
            done: 0,
            reading: 0,
        }
    }

    /// Writes the data if it is to be written, then reads and compares part by part.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        if matches!(self.write, VerifyWriteState::First) {
            self.write = VerifyWriteState::Submitted(io.segments.list_copy());
            let mut segments = *io.segments;
            segments.truncate(self.extent.len);
            return NextStep::Submit(data_request(Op::Write, true, self.extent, &segments));
        }
        if let VerifyWriteState::Submitted(copy) = &mut self.write {
            *io.segments = Segments::from_list_copy_skipping(copy, 0, self.extent.len);
        }
        if let Some(offset) = self.first_difference(io) {
            return NextStep::Failed(Sense::miscompare(offset));
        }
        self.done += self.reading as u64;
        let left = self.extent.len - self.done;
        if left == 0 {
            return NextStep::Finished;
        }
        self.reading = next_step_len(left, STEP_BYTES);
        io.buffer.resize(self.reading);
        let offset = self.extent.offset + self.done;
        NextStep::Submit(io.task_buffer_request(Op::Read, false, offset, self.reading))
    }

    /// Whether the write is in flight.
    pub fn failure_is_write_error(&self) -> bool {
        self.reading == 0 && !matches!(self.write, VerifyWriteState::No)
    }

    /// The first offset at which the initiator's data differs from the blocks that were read.
    fn first_difference(&self, io: &mut StepContext<'_>) -> Option<u64> {
        let read = &io.buffer.bytes()[..self.reading];
        match self.comparison {
            VerifyComparison::Medium => None,
            VerifyComparison::Data => io
                .segments
                .first_difference(self.done, read)
                .map(|at| self.done + at as u64),
            VerifyComparison::Block => read
                .chunks(self.block)
                .find_map(|block| io.segments.first_difference(0, block))
                .map(|at| at as u64),
        }
    }
}
