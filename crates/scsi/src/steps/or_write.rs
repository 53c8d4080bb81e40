//! ORWRITE: reads blocks, and writes the bitwise OR of them and the initiator's data.

use block::Op;

use super::{Extent, NextStep, STEP_BYTES, StepContext, next_step_len};
use crate::task_mutex::MutexKind;

/// No other ORWRITE, and no COMPARE AND WRITE, runs between its reads and its writes.
pub(crate) struct OrWrite {
    extent: Extent,
    fua: bool,
    done: u64,
    state: OrWriteState,
}

#[derive(Clone, Copy)]
enum OrWriteState {
    New,
    Entered,
    Read(usize),
    Written(usize),
}

impl OrWrite {
    /// An ORWRITE of this extent of the node.
    pub fn new(extent: Extent, fua: bool) -> Self {
        OrWrite {
            extent,
            fua,
            done: 0,
            state: OrWriteState::New,
        }
    }

    /// Waits for its turn, then reads, merges and writes one part after the other.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        match self.state {
            OrWriteState::New => {
                self.state = OrWriteState::Entered;
                if io.lock_or_enqueue(MutexKind::Blocks) {
                    self.read_next(io)
                } else {
                    NextStep::Wait
                }
            }
            OrWriteState::Entered => self.read_next(io),
            OrWriteState::Read(count) => {
                self.state = OrWriteState::Written(count);
                self.or_into_buffer(io, count);
                let offset = self.extent.offset + self.done;
                NextStep::Submit(io.task_buffer_request(Op::Write, self.fua, offset, count))
            }
            OrWriteState::Written(count) => {
                self.done += count as u64;
                self.read_next(io)
            }
        }
    }

    /// Whether the last request was a write.
    pub fn failure_is_write_error(&self) -> bool {
        matches!(self.state, OrWriteState::Written(_))
    }

    /// Reads the next part into the buffer, if any is left.
    fn read_next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        let left = self.extent.len - self.done;
        if left == 0 {
            return NextStep::Finished;
        }
        let count = next_step_len(left, STEP_BYTES);
        self.state = OrWriteState::Read(count);
        io.buffer.resize(count);
        let offset = self.extent.offset + self.done;
        NextStep::Submit(io.task_buffer_request(Op::Read, false, offset, count))
    }

    /// Merges the initiator's data into the `count` bytes that were read.
    fn or_into_buffer(&self, io: &mut StepContext<'_>, count: usize) {
        let mut window = [0; 1024];
        let mut at = self.done;
        for part in io.buffer.bytes()[..count].chunks_mut(window.len()) {
            let copied = io.segments.copy_to_slice(at, &mut window[..part.len()]);
            for (to, from) in part.iter_mut().zip(&window[..copied]) {
                *to |= from;
            }
            at += copied as u64;
        }
    }
}
