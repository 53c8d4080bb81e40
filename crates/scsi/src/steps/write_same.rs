//! WRITE SAME: writes the initiator's one block to each block of a range; zeroes by a request for zeroes.

use block::Op;

use super::{Extent, NextStep, StepContext, next_step_len, request_without_data};
use crate::buffer::MAX_BUFFER_BYTES;

/// The node writes zeroes; any other pattern is written from a buffer that is filled with it.
pub(crate) struct WriteSame {
    left: Extent,
    unmap: bool,
    fua: bool,
    block: usize,
    pattern: WriteSamePattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteSamePattern {
    /// The initiator's data was not read yet.
    Unknown,
    Zeroes,
    /// So many bytes of the buffer are filled with the pattern.
    Buffer(usize),
}

impl WriteSame {
    /// Writes the initiator's block, or zeroes (`zeroes`). `unmap`: blocks that become zero may be
    /// deallocated.
    pub fn new(extent: Extent, block: u32, zeroes: bool, unmap: bool, fua: bool) -> Self {
        WriteSame {
            left: extent,
            unmap,
            fua,
            block: block as usize,
            pattern: if zeroes {
                WriteSamePattern::Zeroes
            } else {
                WriteSamePattern::Unknown
            },
        }
    }

    /// Reads the pattern once, then writes it, or zeroes, part by part.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        if self.pattern == WriteSamePattern::Unknown {
            self.pattern = self.fill_buffer_unless_zero_pattern(io);
        }
        let (offset, left) = (self.left.offset, self.left.len);
        if left == 0 {
            return NextStep::Finished;
        }
        match self.pattern {
            WriteSamePattern::Buffer(full) => {
                let len = next_step_len(left, full);
                self.advance(len as u64);
                NextStep::Submit(io.task_buffer_request(Op::Write, self.fua, offset, len))
            }
            WriteSamePattern::Zeroes | WriteSamePattern::Unknown => {
                let len = left.min(io.unit.max_discard_or_zeroes_bytes());
                self.advance(len);
                let op = Op::WriteZeroes { unmap: self.unmap };
                NextStep::Submit(request_without_data(op, self.fua, Extent { offset, len }))
            }
        }
    }

    /// Leaves the first `len` bytes out of what is left to write.
    fn advance(&mut self, len: u64) {
        self.left.offset += len;
        self.left.len -= len;
    }

    /// Reads the initiator's block, and fills the buffer with it unless it is zero.
    fn fill_buffer_unless_zero_pattern(&self, io: &mut StepContext<'_>) -> WriteSamePattern {
        let full = next_step_len(self.left.len, MAX_BUFFER_BYTES);
        io.buffer.resize(full.max(self.block));
        let bytes = io.buffer.bytes();
        io.segments.copy_to_slice(0, &mut bytes[..self.block]);
        if bytes[..self.block].iter().all(|byte| *byte == 0) {
            io.buffer.release();
            return WriteSamePattern::Zeroes;
        }
        let mut filled = self.block;
        while filled < full {
            let more = filled.min(full - filled);
            bytes.copy_within(..more, filled);
            filled += more;
        }
        WriteSamePattern::Buffer(full)
    }
}
