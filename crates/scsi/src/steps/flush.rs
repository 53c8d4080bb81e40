//! Makes writes stable, and then does something else.

use block::Op;

use super::{Extent, Next, Read, StepContext, request_without_data};

/// What follows.
pub(crate) enum AfterFlush {
    Nothing,
    /// The unit is stopped.
    Stop,
    /// Blocks are read, which are stable now.
    Read(Read),
}

/// A flush.
pub(crate) struct Flush {
    then: AfterFlush,
    flushed: bool,
    /// What is under way is the read that follows.
    reading: bool,
}

impl Flush {
    pub fn new(then: AfterFlush) -> Self {
        Flush {
            then,
            flushed: false,
            reading: false,
        }
    }

    /// A flush that fails is about data that was written.
    pub fn writes(&self) -> bool {
        !self.reading
    }

    pub fn next(&mut self, io: &mut StepContext<'_>) -> Next {
        if !self.flushed {
            self.flushed = true;
            let nothing = Extent { offset: 0, len: 0 };
            return Next::Submit(request_without_data(Op::Flush, false, nothing));
        }
        match &mut self.then {
            AfterFlush::Read(read) => {
                self.reading = true;
                read.next(io.segments, io.buffer)
            }
            AfterFlush::Stop => {
                io.unit.change(|state| state.stopped = true);
                Next::Finished
            }
            AfterFlush::Nothing => Next::Finished,
        }
    }
}
