//! A read for which the initiator's buffers are smaller than the blocks: it gets the bytes that fit.

use block::Op;

use super::{Extent, Next, buffer_request, transfer};
use crate::buffer::Buffer;
use crate::segments::{List, Segments};

/// Whole blocks are read into the initiator's buffers, the last one into the task's own buffer.
pub(crate) struct Read {
    extent: Extent,
    block: usize,
    state: State,
}

enum State {
    New,
    /// The whole blocks, of so many bytes, are being read. The request may change the list, so this is a copy.
    Whole(List, u64),
    /// The block of which only a part fits is being read.
    Rest(List, u64),
}

impl Read {
    pub fn new(extent: Extent, block: u32) -> Self {
        Read {
            extent,
            block: block as usize,
            state: State::New,
        }
    }

    pub fn next(&mut self, segments: &Segments, buffer: &mut Buffer) -> Next {
        let fits = segments.len().min(self.extent.len);
        match std::mem::replace(&mut self.state, State::New) {
            State::New => {
                let copy = segments.list_copy();
                let whole = fits - fits % self.block as u64;
                if whole == 0 {
                    return self.rest(copy, 0, fits, buffer);
                }
                self.state = State::Whole(copy, whole);
                let mut list = *segments;
                list.truncate(whole);
                let extent = Extent {
                    offset: self.extent.offset,
                    len: whole,
                };
                Next::Submit(transfer(Op::Read, false, extent, &list))
            }
            State::Whole(copy, whole) => self.rest(copy, whole, fits, buffer),
            State::Rest(mut copy, whole) => {
                let count = usize::try_from(fits - whole).unwrap_or(0);
                let to = Segments::by_copy(&mut copy, whole, fits - whole);
                to.copy_to(0, &buffer.bytes()[..count]);
                Next::Finished
            }
        }
    }

    fn rest(&mut self, copy: List, whole: u64, fits: u64, buffer: &mut Buffer) -> Next {
        if whole == fits {
            return Next::Finished;
        }
        self.state = State::Rest(copy, whole);
        buffer.reserve(self.block);
        let offset = self.extent.offset + whole;
        Next::Submit(buffer_request(buffer, Op::Read, false, offset, self.block))
    }
}
