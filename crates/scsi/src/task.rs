//! A task: the execution of one command, from its data phase through steps for the adapter to status and sense data.

use std::sync::Arc;

use block::{DiskCall, Op};
use engine::Errno;
use libc::iovec;

use crate::buffer::TaskBuffer;
use crate::cdb::Cdb;
use crate::errno::{CommandFailure, command_failure_from_errno};
use crate::nexus::NexusNumber;
use crate::refusal::RefusalStatus;
use crate::segments::Segments;
use crate::sense::{Sense, SenseData};
use crate::step::{AdapterStep, DataPhase, Status};
use crate::steps::{
    AfterFlush, Extent, MultiStepCommand, NextStep, ReadIntoShortBuffer, StepContext, data_request,
};
use crate::task_mutex::{MutexTicket, Waker};
use crate::unit::Unit;

/// The work of a task.
pub(crate) enum RemainingWork {
    /// None, or it is done.
    Nothing,
    /// A read or write of one request.
    Transfer { op: Op, fua: bool, extent: Extent },
    /// A read of more than one request.
    Read(ReadIntoShortBuffer),
    /// Data for the initiator is in `data`.
    DataIn,
    /// A parameter list will come.
    ParameterList(Cdb),
    /// More than one request.
    MultiStepCommand(MultiStepCommand),
}

/// The state of one command. An adapter makes a task for each slot, and reuses it.
///
/// See the crate's documentation for its life cycle.
pub struct Task {
    pub(crate) waker: Waker,
    pub(crate) lun: u16,
    pub(crate) nexus: NexusNumber,
    pub(crate) work: RemainingWork,
    /// The unit, until the task is finished, if the command may need it: of all but plain reads and plain writes with FUA.
    pub(crate) unit: Option<Arc<Unit>>,
    pub(crate) phase: DataPhase,
    /// Bytes of a logical block.
    pub(crate) block_bytes: u32,
    /// The initiator's data must not be longer than the command's.
    pub(crate) needs_exact_data_len: bool,
    pub(crate) descriptor_sense: bool,
    /// Sense data for REQUEST SENSE, on transports without autosense.
    pub(crate) previous_sense: Option<Sense>,
    /// Parameter data.
    pub(crate) data: Vec<u8>,
    segments: Segments,
    buffer: TaskBuffer,
    ticket: Option<MutexTicket>,
    preempted_nexuses: Vec<NexusNumber>,
    /// Data was written without FUA, and not flushed since.
    has_cached_data: bool,
    /// [`on_step_completed`](Self::on_step_completed) is still to be called.
    in_flight: bool,
    cancelled: bool,
    status: Status,
    sense: Option<Sense>,
    sense_data: SenseData,
    transferred: u64,
}

impl Task {
    /// A task for one slot of an adapter. The waker is called after [`AdapterStep::Wait`].
    #[must_use]
    pub fn new(waker: Waker) -> Self {
        Task {
            waker,
            lun: 0,
            nexus: NexusNumber(0),
            work: RemainingWork::Nothing,
            unit: None,
            phase: DataPhase::Status,
            block_bytes: 0,
            needs_exact_data_len: false,
            descriptor_sense: false,
            previous_sense: None,
            data: Vec::new(),
            segments: Segments::EMPTY,
            buffer: TaskBuffer::new(),
            ticket: None,
            preempted_nexuses: Vec::new(),
            has_cached_data: false,
            in_flight: false,
            cancelled: false,
            status: Status::Good,
            sense: None,
            sense_data: SenseData::EMPTY,
            transferred: 0,
        }
    }

    /// Clears the state of the previous command.
    #[inline]
    pub(crate) fn clear_for_command(&mut self, lun: u16, nexus: NexusNumber) {
        debug_assert!(!self.in_flight, "its request is in flight");
        self.lun = lun;
        self.nexus = nexus;
        self.work = RemainingWork::Nothing;
        self.phase = DataPhase::Status;
        self.needs_exact_data_len = false;
        self.has_cached_data = false;
        self.cancelled = false;
        self.status = Status::Good;
        self.sense = None;
        self.transferred = 0;
    }

    /// Executes the command. `iov` has the initiator's buffers: `count` segments of `len` bytes in all, which may be
    /// less than the [`DataPhase`] has, or more.
    ///
    /// A command with data-in transfers the bytes that fit. One with data-out is refused if there are too few bytes.
    ///
    /// # Safety
    /// The segments can be read and written, from any thread, and the list changed, until the task is
    /// [finished](AdapterStep::Finished) or, if it was [cancelled](Self::cancel), its request is completed. The task
    /// lives as long.
    #[inline]
    pub unsafe fn run(&mut self, iov: *mut iovec, count: u32, len: u64) -> AdapterStep {
        // SAFETY: the caller meets the same conditions.
        self.segments = unsafe { Segments::new(iov, count, len) };
        if let RemainingWork::Transfer { op, fua, extent } = self.work
            && len >= extent.len
        {
            if len > extent.len {
                self.segments.truncate(extent.len);
            }
            self.in_flight = true;
            return AdapterStep::Submit(data_request(op, fua, extent, &self.segments));
        }
        self.run_slow_path()
    }

    /// The adapter has submitted the task's request itself.
    pub(crate) fn mark_submitted_by_adapter(&mut self) {
        self.segments = Segments::EMPTY;
        self.in_flight = true;
    }

    /// Runs commands other than plain reads and writes.
    #[cold]
    fn run_slow_path(&mut self) -> AdapterStep {
        let given = self.segments.len();
        if let DataPhase::DataOut(bytes) = self.phase {
            if given < bytes || self.needs_exact_data_len && given > bytes {
                return self.finish_with_sense(Sense::DATA_LENGTH);
            }
            self.transferred = bytes;
        }
        match std::mem::replace(&mut self.work, RemainingWork::Nothing) {
            RemainingWork::Nothing => self.release_and_finish(),
            RemainingWork::Transfer { extent, .. } => {
                // A read into buffers that are smaller than the blocks.
                self.work = RemainingWork::Read(ReadIntoShortBuffer::new(extent, self.block_bytes));
                self.next_step()
            }
            RemainingWork::DataIn => self.reply_and_finish(),
            RemainingWork::ParameterList(cdb) => self.run_parameter_list(&cdb),
            work @ (RemainingWork::MultiStepCommand(_) | RemainingWork::Read(_)) => {
                self.work = work;
                self.next_step()
            }
        }
    }

    /// Copies the parameter data to the initiator's buffers, and finishes the task.
    fn reply_and_finish(&mut self) -> AdapterStep {
        if let DataPhase::DataIn(bytes) = self.phase {
            let wanted = usize::try_from(bytes.min(self.segments.len())).unwrap_or(0);
            let answer = &self.data[..wanted.min(self.data.len())];
            self.transferred = self.segments.copy_from_slice(0, answer) as u64;
        }
        self.release_and_finish()
    }

    /// Copies the parameter list from the initiator's buffers and executes it.
    fn run_parameter_list(&mut self, cdb: &Cdb) -> AdapterStep {
        let len = usize::try_from(self.transferred).unwrap_or(0);
        self.data.clear();
        self.data.resize(len, 0);
        self.segments.copy_to_slice(0, &mut self.data);
        match self.execute_parameter_list(cdb) {
            Ok(None) => self.release_and_finish(),
            Ok(Some(steps)) => {
                self.work = RemainingWork::MultiStepCommand(steps);
                self.next_step()
            }
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// The call of [`AdapterStep::Call`].
    #[must_use]
    pub fn requested_disk_call(&self) -> Option<DiskCall> {
        match (&self.work, &self.unit) {
            (
                RemainingWork::MultiStepCommand(MultiStepCommand::PersistentReserveOut(steps)),
                Some(unit),
            ) => steps.requested_disk_call(unit),
            (RemainingWork::MultiStepCommand(MultiStepCommand::GetLbaStatus(steps)), _) => {
                Some(steps.requested_disk_call())
            }
            _ => None,
        }
    }

    /// Continues after an [`AdapterStep`], with its result.
    #[inline]
    pub fn on_step_completed(&mut self, result: Result<(), Errno>) -> AdapterStep {
        self.in_flight = false;
        if let (RemainingWork::Transfer { op, fua, extent }, Ok(()), false) =
            (&self.work, result, self.cancelled)
        {
            self.transferred = extent.len;
            self.has_cached_data = *op == Op::Write && !*fua;
            self.work = RemainingWork::Nothing;
            if self.has_cached_data {
                return self.flush_if_cache_is_off_and_finish();
            }
            self.unit = None;
            return AdapterStep::Finished;
        }
        self.on_step_completed_slow_path(result)
    }

    /// Continues all but plain reads and writes that have succeeded: cancelled, failed, or with more steps.
    #[cold]
    fn on_step_completed_slow_path(&mut self, result: Result<(), Errno>) -> AdapterStep {
        if let (RemainingWork::MultiStepCommand(steps), Some(unit), Err(_)) =
            (&self.work, &self.unit, result)
        {
            steps.on_failure(unit);
        }
        if self.cancelled {
            if let (
                RemainingWork::MultiStepCommand(MultiStepCommand::PersistentReserveOut(steps)),
                Some(unit),
                Ok(()),
            ) = (&mut self.work, &self.unit, result)
            {
                steps.apply_saved_change(unit);
            }
            return self.finish_with_status(Status::TaskAborted);
        }
        match result {
            Ok(()) => self.next_step(),
            Err(errno) => {
                let failure = match &self.work {
                    RemainingWork::MultiStepCommand(MultiStepCommand::PersistentReserveOut(
                        steps,
                    )) => CommandFailure::Sense(steps.sense_of_failed_save(errno)),
                    RemainingWork::MultiStepCommand(steps) => {
                        command_failure_from_errno(errno, steps.failure_is_write_error())
                    }
                    RemainingWork::Transfer { op, .. } => {
                        command_failure_from_errno(errno, *op == Op::Write)
                    }
                    _ => command_failure_from_errno(errno, false),
                };
                match failure {
                    CommandFailure::Sense(sense) => self.finish_with_sense(sense),
                    CommandFailure::Conflict => {
                        self.finish_with_status(Status::ReservationConflict)
                    }
                    CommandFailure::TaskSetFull => self.finish_with_status(Status::TaskSetFull),
                }
            }
        }
    }

    /// Continues after a call of the waker. `None`: it was not for the present command, but for one that was
    /// [cancelled](Self::cancel).
    pub fn on_resumed(&mut self) -> Option<AdapterStep> {
        let (Some(ticket), Some(unit)) = (self.ticket, &self.unit) else {
            return None;
        };
        if self.in_flight || !unit.task_mutexes.is_held_by(ticket) {
            return None;
        }
        Some(self.next_step())
    }

    /// Gets the next step of the command, or finishes it.
    fn next_step(&mut self) -> AdapterStep {
        let next = match (&mut self.work, &self.unit) {
            (RemainingWork::Read(read), _) => read.next(&self.segments, &mut self.buffer),
            (RemainingWork::MultiStepCommand(steps), Some(unit)) => steps.next(&mut StepContext {
                unit,
                segments: &mut self.segments,
                buffer: &mut self.buffer,
                waker: &self.waker,
                ticket: &mut self.ticket,
            }),
            _ => return self.release_and_finish(),
        };
        self.in_flight = true;
        match next {
            NextStep::Submit(request) => {
                self.has_cached_data |=
                    matches!(request.op, Op::Write | Op::WriteZeroes { .. }) && !request.fua;
                AdapterStep::Submit(request)
            }
            NextStep::Wait => {
                self.in_flight = false;
                AdapterStep::Wait
            }
            NextStep::Call => AdapterStep::Call,
            NextStep::EndTasksOf(lost) => {
                self.preempted_nexuses = lost;
                AdapterStep::SettlePreempted
            }
            NextStep::Finished => {
                if let DataPhase::DataIn(bytes) = self.phase {
                    self.transferred = bytes.min(self.segments.len());
                }
                self.flush_if_cache_is_off_and_finish()
            }
            NextStep::Reply => self.reply_and_finish(),
            NextStep::FinishedWithBytes(bytes) => {
                self.transferred = bytes;
                self.flush_if_cache_is_off_and_finish()
            }
            NextStep::Failed(sense) => self.finish_with_sense(sense),
            NextStep::Refused(refusal) => self.refuse(refusal),
        }
    }

    /// Finishes a task that has succeeded. What it wrote while the write cache was on is flushed first if that was turned off
    /// meanwhile: its initiator takes it as stable.
    fn flush_if_cache_is_off_and_finish(&mut self) -> AdapterStep {
        let cache_is_off = |unit: &Arc<Unit>| unit.access_word().is_write_through();
        if std::mem::take(&mut self.has_cached_data) && self.unit.as_ref().is_some_and(cache_is_off)
        {
            let flush = MultiStepCommand::flush_then(AfterFlush::Nothing);
            self.work = RemainingWork::MultiStepCommand(flush);
            return self.next_step();
        }
        self.release_and_finish()
    }

    /// Finishes the task with the status of a refusal.
    pub(crate) fn refuse(&mut self, refusal: RefusalStatus) -> AdapterStep {
        match refusal {
            RefusalStatus::Sense(sense) => self.finish_with_sense(sense),
            RefusalStatus::Conflict => self.finish_with_status(Status::ReservationConflict),
        }
    }

    /// Finishes the task with CHECK CONDITION and this sense data.
    fn finish_with_sense(&mut self, sense: Sense) -> AdapterStep {
        self.sense = Some(sense);
        self.sense_data = sense.encode(self.descriptor_sense);
        self.finish_with_status(Status::CheckCondition)
    }

    /// Finishes the task with a status.
    fn finish_with_status(&mut self, status: Status) -> AdapterStep {
        self.status = status;
        self.release_and_finish()
    }

    /// Finishes the task: ends its turn, and releases what it holds. The status is set before.
    fn release_and_finish(&mut self) -> AdapterStep {
        self.in_flight = false;
        if let (Some(ticket), Some(unit)) = (self.ticket.take(), &self.unit) {
            unit.task_mutexes.unlock_or_dequeue(ticket);
        }
        self.work = RemainingWork::Nothing;
        self.unit = None;
        self.buffer.release();
        self.segments = Segments::EMPTY;
        AdapterStep::Finished
    }

    /// Cancels the task: ABORT TASK, a reset, a queue that stops. True: a [step](AdapterStep) is in progress, and the task may be
    /// reused only after [`on_step_completed`](Self::on_step_completed). Its status is not for the initiator.
    pub fn cancel(&mut self) -> bool {
        self.cancelled = true;
        if !self.in_flight {
            self.finish_with_status(Status::TaskAborted);
        }
        self.in_flight
    }

    /// The status of a finished task.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Sense data, in the format of the control mode page; empty unless the status is CHECK CONDITION.
    #[must_use]
    pub fn sense(&self) -> &[u8] {
        match self.sense {
            Some(_) => self.sense_data.as_bytes(),
            None => &[],
        }
    }

    /// The same before it is encoded: a transport without autosense stores it for
    /// [`set_previous_sense`](Self::set_previous_sense).
    #[must_use]
    pub fn unencoded_sense(&self) -> Option<Sense> {
        self.sense
    }

    /// Sets the sense data for the next command, if that is REQUEST SENSE: on a transport without autosense, those of
    /// the previous command of the same initiator to the same unit. Any other
    /// command clears them.
    pub fn set_previous_sense(&mut self, sense: Sense) {
        self.previous_sense = Some(sense);
    }

    /// Bytes that were moved. If that is less than the initiator's buffers have, there is a residual.
    #[must_use]
    #[inline]
    pub fn transferred_bytes(&self) -> u64 {
        self.transferred
    }

    /// The number of its unit.
    #[must_use]
    #[inline]
    pub fn lun(&self) -> u16 {
        self.lun
    }

    /// The initiator.
    #[must_use]
    pub fn nexus(&self) -> NexusNumber {
        self.nexus
    }

    /// The initiators whose tasks must end for [`AdapterStep::SettlePreempted`].
    #[must_use]
    pub fn preempted_nexuses(&self) -> &[NexusNumber] {
        &self.preempted_nexuses
    }
}

impl Drop for Task {
    /// Lets tasks go on that wait for this one.
    fn drop(&mut self) {
        self.release_and_finish();
    }
}

/// Adapters may make tasks on one thread, and use them on another.
const fn assert_send<T: Send>() {}
const _: () = assert_send::<Task>();
