//! A read into buffers of the initiator that hold less than the command transfers: whole blocks are read into them, the last partial
//! one through a buffer of the task.

use block::Op;

use super::{Extent, NextStep, data_request, task_buffer_request};
use crate::buffer::TaskBuffer;
use crate::segments::{SegmentListCopy, Segments};

/// Whole blocks are read into the initiator's buffers, the last one into the task's own buffer.
pub(crate) struct ReadIntoShortBuffer {
    extent: Extent,
    block: usize,
    state: ReadState,
}

enum ReadState {
    New,
    /// The whole blocks, of so many bytes, are being read. The request may change the list, so this is a copy.
    Whole(SegmentListCopy, u64),
    /// The block of which only a part fits is being read.
    Rest(SegmentListCopy, u64),
}

impl ReadIntoShortBuffer {
    pub fn new(extent: Extent, block: u32) -> Self {
        ReadIntoShortBuffer {
            extent,
            block: block as usize,
            state: ReadState::New,
        }
    }

    /// Reads the whole blocks that fit, then the last block, of which a part is copied.
    pub fn next(&mut self, segments: &Segments, buffer: &mut TaskBuffer) -> NextStep {
        let fits = segments.len().min(self.extent.len);
        match std::mem::replace(&mut self.state, ReadState::New) {
            ReadState::New => {
                let copy = segments.list_copy();
                let whole = fits - fits % self.block as u64;
                if whole == 0 {
                    return self.read_partial_block_or_finish(copy, 0, fits, buffer);
                }
                self.state = ReadState::Whole(copy, whole);
                let mut list = *segments;
                list.truncate(whole);
                let extent = Extent {
                    offset: self.extent.offset,
                    len: whole,
                };
                NextStep::Submit(data_request(Op::Read, false, extent, &list))
            }
            ReadState::Whole(copy, whole) => {
                self.read_partial_block_or_finish(copy, whole, fits, buffer)
            }
            ReadState::Rest(mut copy, whole) => {
                let count = usize::try_from(fits - whole).unwrap_or(0);
                let to = Segments::from_list_copy_skipping(&mut copy, whole, fits - whole);
                to.copy_from_slice(0, &buffer.bytes()[..count]);
                NextStep::Finished
            }
        }
    }

    /// Reads the block of which only a part fits, unless there is none.
    fn read_partial_block_or_finish(
        &mut self,
        copy: SegmentListCopy,
        whole: u64,
        fits: u64,
        buffer: &mut TaskBuffer,
    ) -> NextStep {
        if whole == fits {
            return NextStep::Finished;
        }
        self.state = ReadState::Rest(copy, whole);
        buffer.resize(self.block);
        let offset = self.extent.offset + whole;
        NextStep::Submit(task_buffer_request(
            buffer,
            Op::Read,
            false,
            offset,
            self.block,
        ))
    }
}
