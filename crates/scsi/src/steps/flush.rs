//! Makes writes stable, and then does something else.

use block::Op;

use super::{Extent, Io, Next, Read, plain};

/// What follows.
pub(crate) enum Then {
    Nothing,
    /// The unit is stopped.
    Stop,
    /// Blocks are read, which are stable now.
    Read(Read),
}

/// A flush.
pub(crate) struct Flush {
    then: Then,
    flushed: bool,
    /// What is under way is the read that follows.
    reading: bool,
}

impl Flush {
    pub fn then(then: Then) -> Self {
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

    pub fn next(&mut self, io: &mut Io<'_>) -> Next {
        if !self.flushed {
            self.flushed = true;
            let nothing = Extent { offset: 0, len: 0 };
            return Next::Submit(plain(Op::Flush, false, nothing));
        }
        match &mut self.then {
            Then::Read(read) => {
                self.reading = true;
                read.next(io.segments, io.buffer)
            }
            Then::Stop => {
                io.unit.change(|state| state.stopped = true);
                Next::Finished
            }
            Then::Nothing => Next::Finished,
        }
    }
}
