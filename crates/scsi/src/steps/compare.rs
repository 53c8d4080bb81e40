//! COMPARE AND WRITE: reads blocks, and writes the second half of the initiator's data if the first half equals them.

use block::Op;

use super::{Extent, NextStep, StepContext, data_request};
use crate::segments::{SegmentListCopy, Segments};
use crate::sense::Sense;
use crate::task_mutex::MutexKind;

/// No other COMPARE AND WRITE, and no ORWRITE, runs between its read and its write.
pub(crate) struct CompareAndWrite {
    extent: Extent,
    fua: bool,
    state: CompareState,
}

enum CompareState {
    New,
    Entered,
    Read,
    /// The segments of the write.
    Written(#[expect(dead_code, reason = "the request points to it")] SegmentListCopy),
}

impl CompareAndWrite {
    pub fn new(extent: Extent, fua: bool) -> Self {
        CompareAndWrite {
            extent,
            fua,
            state: CompareState::New,
        }
    }

    /// Waits for its turn, reads the blocks, compares them, and writes.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        let len = usize::try_from(self.extent.len).unwrap_or(usize::MAX);
        match self.state {
            CompareState::New => {
                self.state = CompareState::Entered;
                if io.lock_or_enqueue(MutexKind::Blocks) {
                    self.next(io)
                } else {
                    NextStep::Wait
                }
            }
            CompareState::Entered => {
                self.state = CompareState::Read;
                io.buffer.resize(len);
                NextStep::Submit(io.task_buffer_request(Op::Read, false, self.extent.offset, len))
            }
            CompareState::Read => {
                let read = &io.buffer.bytes()[..len];
                if let Some(at) = io.segments.first_difference(0, read) {
                    return NextStep::Failed(Sense::miscompare(at as u64));
                }
                let mut list = io.segments.list_copy();
                let mut second =
                    Segments::from_list_copy_skipping(&mut list, self.extent.len, self.extent.len);
                second.truncate(self.extent.len);
                let request = data_request(Op::Write, self.fua, self.extent, &second);
                self.state = CompareState::Written(list);
                NextStep::Submit(request)
            }
            CompareState::Written(_) => NextStep::Finished,
        }
    }

    /// Whether the comparison was successful, and the write was submitted.
    pub fn failure_is_write_error(&self) -> bool {
        matches!(self.state, CompareState::Written(_))
    }
}
