//! Commands that need more than one request to the node.

mod compare;
mod flush;
mod lba_status;
mod or_write;
mod read;
mod reserve;
mod unmap;
mod verify;
mod write_same;

use block::{Op, Request};

use crate::buffer::Buffer;
use crate::exclusive::{Exclusion, Ticket, Waker};
use crate::nexus::Nexus;
use crate::refusal::Refusal;
use crate::segments::Segments;
use crate::sense::Sense;
use crate::unit::Unit;

pub(crate) use compare::CompareAndWrite;
pub(crate) use flush::{AfterFlush, Flush};
pub(crate) use lba_status::LbaStatus;
pub(crate) use or_write::OrWrite;
pub(crate) use read::Read;
pub(crate) use reserve::Reserve;
pub(crate) use unmap::Unmap;
pub(crate) use verify::{Comparison, Verify};
pub(crate) use write_same::WriteSame;

/// Most bytes of a range that are processed in one step.
pub(crate) const STEP_BYTES: usize = 256 << 10;

/// The state of a task that a step uses.
pub(crate) struct StepContext<'a> {
    pub unit: &'a Unit,
    pub segments: &'a mut Segments,
    pub buffer: &'a mut Buffer,
    pub waker: &'a Waker,
    pub ticket: &'a mut Option<Ticket>,
}

/// The next step of a command.
pub(crate) enum NextStep {
    /// Submit a request to the node.
    Submit(Request),
    /// Wait for another task: the waker is called.
    Wait,
    /// Make the command's disk call, which may block.
    Call,
    /// End the tasks of these initiators.
    EndTasksOf(Vec<Nexus>),
    Finished,
    /// Finished; so many bytes were moved.
    FinishedWithBytes(u64),
    Failed(Sense),
    Refused(Refusal),
}

/// A command in progress. `next` returns a step, and is called again when that is done.
pub(crate) enum Steps {
    Flush(Flush),
    Verify(Verify),
    WriteSame(WriteSame),
    Unmap(Unmap),
    CompareAndWrite(CompareAndWrite),
    OrWrite(OrWrite),
    Reserve(Reserve),
    LbaStatus(LbaStatus),
}

impl Steps {
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        match self {
            Steps::Flush(steps) => steps.next(io),
            Steps::Verify(steps) => steps.next(io),
            Steps::WriteSame(steps) => steps.next(io),
            Steps::Unmap(steps) => steps.next(),
            Steps::CompareAndWrite(steps) => steps.next(io),
            Steps::OrWrite(steps) => steps.next(io),
            Steps::Reserve(steps) => steps.next(io),
            Steps::LbaStatus(steps) => steps.next(io),
        }
    }

    /// Whether the last request was a write, or a flush of writes, on which the sense data of some errors depends.
    pub fn last_request_writes(&self) -> bool {
        match self {
            Steps::Flush(steps) => steps.last_request_writes(),
            Steps::LbaStatus(_) => false,
            Steps::Verify(steps) => steps.last_request_writes(),
            Steps::CompareAndWrite(steps) => steps.last_request_writes(),
            Steps::OrWrite(steps) => steps.last_request_writes(),
            Steps::WriteSame(_) | Steps::Unmap(_) | Steps::Reserve(_) => true,
        }
    }
}

/// A range of bytes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub offset: u64,
    pub len: u64,
}

/// A request without data.
pub(crate) fn request_without_data(op: Op, fua: bool, extent: Extent) -> Request {
    Request {
        fua,
        ..Request::without_data(op, extent.offset, extent.len, 0)
    }
}

/// A request that moves the initiator's data.
pub(crate) fn data_request(op: Op, fua: bool, extent: Extent, segments: &Segments) -> Request {
    let (iov, iov_count) = segments.iov_and_count();
    Request {
        iov,
        iov_count,
        ..request_without_data(op, fua, extent)
    }
}

/// A request for the first bytes of a task's own buffer.
fn buffer_request(buffer: &mut Buffer, op: Op, fua: bool, offset: u64, len: usize) -> Request {
    let extent = Extent {
        offset,
        len: len as u64,
    };
    Request {
        iov: buffer.segment(len),
        iov_count: 1,
        ..request_without_data(op, fua, extent)
    }
}

impl StepContext<'_> {
    /// A request for the first bytes of the task's own buffer.
    fn buffer_request(&mut self, op: Op, fua: bool, offset: u64, len: usize) -> Request {
        buffer_request(self.buffer, op, fua, offset, len)
    }

    /// Enqueues the task. True: it is its turn; otherwise it waits.
    fn enter_exclusion(&mut self, exclusion: Exclusion) -> bool {
        let (ticket, ours) = self.unit.exclusions.enter(exclusion, self.waker);
        *self.ticket = Some(ticket);
        ours
    }

    /// Ends the task's turn.
    fn leave_exclusion(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.unit.exclusions.leave(ticket);
        }
    }
}

/// The length of the next of several steps.
fn step_len(left: u64, most: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(most)
}
