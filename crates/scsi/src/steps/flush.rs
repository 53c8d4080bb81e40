//! A flush, and what a command does after it: nothing, stop the unit, reply, or read blocks, which are stable then.

use block::Op;

use super::{Extent, NextStep, ReadIntoShortBuffer, StepContext, request_without_data};
use crate::unit::Unit;

/// The action after a flush.
pub(crate) enum AfterFlush {
    Nothing,
    /// Stop the unit.
    Stop,
    /// Reply that the write cache is off: earlier writes are stable now.
    ReplyCacheIsOff,
    /// Nothing. The write cache was just turned off: on failure it is turned on again.
    CacheWasTurnedOff,
    /// Read blocks, which are stable now.
    Read(ReadIntoShortBuffer),
}

/// A flush and the action after it.
pub(crate) struct FlushThen {
    then: AfterFlush,
    flushed: bool,
    /// The read after the flush is in flight.
    reading: bool,
}

impl FlushThen {
    pub fn new(then: AfterFlush) -> Self {
        FlushThen {
            then,
            flushed: false,
            reading: false,
        }
    }

    /// Whether the flush is in flight, whose failure concerns data that was written.
    pub fn failure_is_write_error(&self) -> bool {
        !self.reading
    }

    /// Flushes, and then stops the unit, replies or reads.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        if !self.flushed {
            self.flushed = true;
            let nothing = Extent { offset: 0, len: 0 };
            return NextStep::Submit(request_without_data(Op::Flush, false, nothing));
        }
        match &mut self.then {
            AfterFlush::Read(read) => {
                self.reading = true;
                read.next(io.segments, io.buffer)
            }
            AfterFlush::Stop => {
                io.unit
                    .change_state_and_access_word(|state| state.stopped = true);
                NextStep::Finished
            }
            AfterFlush::ReplyCacheIsOff => NextStep::Reply,
            AfterFlush::Nothing | AfterFlush::CacheWasTurnedOff => NextStep::Finished,
        }
    }

    /// Undoes what relied on the flush, which has failed.
    pub fn on_failure(&self, unit: &Unit) {
        if let AfterFlush::CacheWasTurnedOff = self.then {
            unit.turn_write_cache_on();
        }
    }
}
