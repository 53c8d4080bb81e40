//! Commands that need more than one request to the node, or a call that may block: each is a state machine that returns
//! its next step.

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

use crate::buffer::TaskBuffer;
use crate::nexus::NexusNumber;
use crate::refusal::RefusalStatus;
use crate::segments::Segments;
use crate::sense::Sense;
use crate::task_mutex::{MutexKind, MutexTicket, Waker};
use crate::unit::Unit;

pub(crate) use compare::CompareAndWrite;
pub(crate) use flush::AfterFlush;
use flush::FlushThen;
pub(crate) use lba_status::GetLbaStatus;
pub(crate) use or_write::OrWrite;
pub(crate) use read::ReadIntoShortBuffer;
pub(crate) use reserve::PersistentReserveOut;
pub(crate) use unmap::Unmap;
pub(crate) use verify::{Verify, VerifyComparison};
pub(crate) use write_same::WriteSame;

/// Most bytes of a range that are processed in one step.
pub(crate) const STEP_BYTES: usize = 256 << 10;

/// What a command in progress uses of its task and unit.
pub(crate) struct StepContext<'a> {
    pub unit: &'a Unit,
    pub segments: &'a mut Segments,
    pub buffer: &'a mut TaskBuffer,
    pub waker: &'a Waker,
    pub ticket: &'a mut Option<MutexTicket>,
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
    EndTasksOf(Vec<NexusNumber>),
    Finished,
    /// Send the command's parameter data, and finish.
    Reply,
    /// Finished; so many bytes were moved.
    FinishedWithBytes(u64),
    Failed(Sense),
    Refused(RefusalStatus),
}

/// A command in progress. `next` returns a step, and is called again when that is done.
pub(crate) enum MultiStepCommand {
    Flush(FlushThen),
    Verify(Verify),
    WriteSame(WriteSame),
    Unmap(Unmap),
    CompareAndWrite(CompareAndWrite),
    OrWrite(OrWrite),
    PersistentReserveOut(PersistentReserveOut),
    GetLbaStatus(GetLbaStatus),
}

impl MultiStepCommand {
    /// A flush, and the action after it.
    pub fn flush_then(then: AfterFlush) -> Self {
        MultiStepCommand::Flush(FlushThen::new(then))
    }

    /// The next step of the command, whose last one is done.
    pub fn next(&mut self, io: &mut StepContext<'_>) -> NextStep {
        match self {
            MultiStepCommand::Flush(steps) => steps.next(io),
            MultiStepCommand::Verify(steps) => steps.next(io),
            MultiStepCommand::WriteSame(steps) => steps.next(io),
            MultiStepCommand::Unmap(steps) => steps.next(),
            MultiStepCommand::CompareAndWrite(steps) => steps.next(io),
            MultiStepCommand::OrWrite(steps) => steps.next(io),
            MultiStepCommand::PersistentReserveOut(steps) => steps.next(io),
            MultiStepCommand::GetLbaStatus(steps) => steps.next(io),
        }
    }

    /// Undoes what relied on the last request, which has failed.
    pub fn on_failure(&self, unit: &Unit) {
        if let MultiStepCommand::Flush(steps) = self {
            steps.on_failure(unit);
        }
    }

    /// Whether the last request was a write, or a flush of writes, on which the sense data of some errors depends.
    pub fn failure_is_write_error(&self) -> bool {
        match self {
            MultiStepCommand::Flush(steps) => steps.failure_is_write_error(),
            MultiStepCommand::GetLbaStatus(_) => false,
            MultiStepCommand::Verify(steps) => steps.failure_is_write_error(),
            MultiStepCommand::CompareAndWrite(steps) => steps.failure_is_write_error(),
            MultiStepCommand::OrWrite(steps) => steps.failure_is_write_error(),
            MultiStepCommand::WriteSame(_)
            | MultiStepCommand::Unmap(_)
            | MultiStepCommand::PersistentReserveOut(_) => true,
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
fn task_buffer_request(
    buffer: &mut TaskBuffer,
    op: Op,
    fua: bool,
    offset: u64,
    len: usize,
) -> Request {
    let extent = Extent {
        offset,
        len: len as u64,
    };
    Request {
        iov: buffer.first_bytes_iov(len),
        iov_count: 1,
        ..request_without_data(op, fua, extent)
    }
}

impl StepContext<'_> {
    /// A request for the first bytes of the task's own buffer.
    fn task_buffer_request(&mut self, op: Op, fua: bool, offset: u64, len: usize) -> Request {
        task_buffer_request(self.buffer, op, fua, offset, len)
    }

    /// Locks a mutex of the unit for the task, or enqueues the task. True: it has the mutex; otherwise it waits.
    fn lock_or_enqueue(&mut self, kind: MutexKind) -> bool {
        let (ticket, locked) = self.unit.task_mutexes.lock_or_enqueue(kind, self.waker);
        *self.ticket = Some(ticket);
        locked
    }

    /// Unlocks the mutex that the task has.
    fn unlock_mutex(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.unit.task_mutexes.unlock_or_dequeue(ticket);
        }
    }
}

/// The length of the next of several steps: what is left, up to `most`.
fn next_step_len(left: u64, most: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(most)
}
