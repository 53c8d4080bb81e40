//! The targets on the chip's SCSI bus: order of tasks, sense data, and requests that wait for a backend.

mod abort_and_reset;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chip::{
    CheckConditionCause, MAX_TASKS, PhaseAfterCommand, TagAttribute, TargetAndLun, TaskSlotId,
    TaskStartOutcome,
};
use block::{DiskCall, DiskIo, Request};
use engine::Errno;
use libc::iovec;
use scsi::{
    NexusPorts, Sense, SenseKey, StartOrWait, Status, Target, TargetView, TaskSet, TransportId,
    Waker,
};

use crate::adapter::memory_generations::MemoryGenerations;
use crate::adapter::resumed_tasks::ResumedTasks;
use crate::adapter::sense_report_queue::SenseReportQueue;
use crate::adapter::slot::{AdapterTaskSlot, InitiatorBuffers, TaskStage};
use crate::adapter::{Disk, DiskAddressError, INITIATOR};

/// The chip, which is the only initiator on this bus, for the crate `scsi`.
const INITIATOR_NEXUS: scsi::NexusNumber = scsi::NexusNumber(0);

const REQUEST_SENSE: u8 = 0x03;

const CHECK_CONDITION: u8 = Status::CheckCondition as u8;

/// Work of a task that is to be submitted.
enum QueuedRequestOrCall {
    Request(Request),
    Call(DiskCall),
}

/// A disk on the bus, with its tasks and sense data.
struct BusDisk {
    disk: Disk,
    tasks: TaskSet<u16>,
    sense: SenseReportQueue,
}

/// All disks on the bus, and all tasks.
pub struct DisksAndTasks {
    targets: [Option<TargetView>; 16],
    disks: Vec<BusDisk>,
    slots: Vec<AdapterTaskSlot>,
    /// Requests and calls that wait for a backend.
    queued: VecDeque<(u16, QueuedRequestOrCall)>,
    /// The number of requests and calls that were submitted and are not done.
    in_flight_count: usize,
    /// Tasks whose turn it is.
    admitted: VecDeque<u16>,
    /// Finished tasks and their status, for the chip.
    finished: VecDeque<(TaskSlotId, u8)>,
    resumed: Arc<ResumedTasks>,
    now_ns: u64,
}

// SAFETY: queued requests point to lists of the chip's and of tasks, which move between threads only with them.
unsafe impl Send for DisksAndTasks {}

impl DisksAndTasks {
    /// Builds the targets of these disks, each of which needs an address of its own.
    pub fn at_bus_addresses(disks: &[Disk]) -> Result<Self, DiskAddressError> {
        let mut targets: [Option<Arc<Target>>; 16] = Default::default();
        for disk in disks {
            let (target, lun) =
                DiskAddressError::checked_target_and_lun(disk.target.into(), disk.lun.into())?;
            let units = targets[usize::from(target)].get_or_insert_with(Target::new);
            let added = units.add_unit_and_raise_attentions(lun.into(), disk.unit.clone());
            added.map_err(|_| DiskAddressError::Taken { target, lun })?;
        }
        let ports = NexusPorts {
            initiator: TransportId::Parallel {
                address: INITIATOR.into(),
            },
            target: 1,
        };
        for target in targets.iter().flatten() {
            target.attach_initiator_and_start_units(INITIATOR_NEXUS, &ports);
        }
        let resumed = Arc::new(ResumedTasks::default());
        let slot = |token| {
            let resume = resumed.clone();
            AdapterTaskSlot::new(Waker { resume, token })
        };
        Ok(DisksAndTasks {
            targets: targets.map(|target| target.map(TargetView::new)),
            disks: disks
                .iter()
                .map(|disk| BusDisk {
                    disk: disk.clone(),
                    tasks: TaskSet::default(),
                    sense: SenseReportQueue::default(),
                })
                .collect(),
            slots: (0..MAX_TASKS as u64).map(slot).collect(),
            queued: VecDeque::new(),
            in_flight_count: 0,
            admitted: VecDeque::new(),
            finished: VecDeque::new(),
            resumed,
            now_ns: 0,
        })
    }

    /// Whether a target has this ID.
    pub fn has_target(&self, target: u8) -> bool {
        let target = self.targets.get(usize::from(target));
        target.is_some_and(Option::is_some)
    }

    /// Sets the time, and reports failed tasks that have waited until the timeout.
    pub fn advance_time_and_report_overdue_tasks(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        for disk in 0..self.disks.len() {
            if let Some(next) = self.disks[disk].sense.take_next_to_report(now_ns) {
                self.queue_status_for_chip(next, CHECK_CONDITION);
            }
        }
    }

    /// When the next timeout for REQUEST SENSE expires: call
    /// [`DisksAndTasks::advance_time_and_report_overdue_tasks`] then.
    pub fn request_sense_deadline_ns(&self) -> Option<u64> {
        let waits = self
            .disks
            .iter()
            .filter_map(|bus_disk| bus_disk.sense.request_sense_deadline_ns());
        waits.min()
    }

    /// The next finished task and its status, for the chip.
    pub fn take_next_finished(&mut self) -> Option<(TaskSlotId, u8)> {
        self.finished.pop_front()
    }

    /// Whether finished tasks wait to be passed to the chip.
    pub fn has_finished_tasks(&self) -> bool {
        !self.finished.is_empty()
    }

    /// The number of requests and calls that were submitted and are not done.
    pub fn in_flight_count(&self) -> usize {
        self.in_flight_count
    }

    /// The number of requests for [`DisksAndTasks::submit_queued`].
    pub fn queued_count(&self) -> usize {
        self.queued.len()
    }

    /// Submits requests to the backends. False: some wait for room.
    pub fn submit_queued(&mut self, io: &mut dyn DiskIo) -> bool {
        for _ in 0..self.queued.len() {
            let Some((index, work)) = self.queued.pop_front() else {
                break;
            };
            let disk = self.slots[usize::from(index)].disk;
            let Some(Ok(disk)) = disk.map(u32::try_from) else {
                continue;
            };
            let mut request = match work {
                QueuedRequestOrCall::Request(request) => request,
                QueuedRequestOrCall::Call(call) => {
                    self.in_flight_count += 1;
                    io.submit_blocking_call(disk, call, index.into());
                    continue;
                }
            };
            if io.room(disk) == 0 {
                self.queued
                    .push_back((index, QueuedRequestOrCall::Request(request)));
                continue;
            }
            self.in_flight_count += 1;
            request.token = index.into();
            // SAFETY: the task has made the request of segments that are its own or the chip's, and keeps its stage, and
            // so its slot, until `on_step_completed`.
            unsafe { io.submit(disk, request) };
        }
        self.queued.is_empty()
    }

    /// Completes the request of the task in this slot, continues the task, and runs others that became ready.
    pub fn complete_request(
        &mut self,
        memory: &mut MemoryGenerations,
        slot: u32,
        result: Result<(), Errno>,
    ) {
        let Ok(index) = u16::try_from(slot) else {
            return;
        };
        self.in_flight_count -= 1;
        let step = self.slots[usize::from(index)]
            .task
            .on_step_completed(result);
        self.continue_task_from_step(memory, index, step);
        self.run_ready_tasks(memory);
    }

    /// The index of the disk that is this logical unit.
    fn find_disk(&self, nexus: TargetAndLun) -> Option<usize> {
        self.disks.iter().position(|bus_disk| {
            (bus_disk.disk.target, bus_disk.disk.lun) == (nexus.target, nexus.lun)
        })
    }

    /// Receives a command: finds its disk, and returns which data it needs.
    pub fn receive_command_and_take_sense(
        &mut self,
        id: TaskSlotId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        let disk = self.find_disk(nexus);
        let slot = &mut self.slots[usize::from(id.index)];
        slot.begin_command(id, disk, attribute);
        if let Some(disk) = disk {
            let reports = &mut self.disks[disk].sense;
            // Tagged commands may have been in flight when the failure was reported.
            if attribute == TagAttribute::Untagged || cdb.first() == Some(&REQUEST_SENSE) {
                if let Some(sense) = reports.take_reported_sense() {
                    slot.task.set_previous_sense(sense);
                }
                if let Some(next) = reports.take_next_to_report(self.now_ns) {
                    self.queue_status_for_chip(next, CHECK_CONDITION);
                }
            }
        }
        let slot = &mut self.slots[usize::from(id.index)];
        let Some(view) = &mut self.targets[usize::from(nexus.target)] else {
            return PhaseAfterCommand::Status;
        };
        let phase = slot
            .task
            .receive(view, nexus.lun.into(), INITIATOR_NEXUS, cdb);
        match phase {
            scsi::DataPhase::Status => PhaseAfterCommand::Status,
            scsi::DataPhase::DataIn(bytes) => PhaseAfterCommand::DataIn(bytes),
            scsi::DataPhase::DataOut(bytes) => PhaseAfterCommand::DataOut(bytes),
        }
    }

    /// Replaces a task by one that ends in CHECK CONDITION.
    pub fn replace_by_failing_task(
        &mut self,
        id: TaskSlotId,
        nexus: TargetAndLun,
        refusal: CheckConditionCause,
    ) {
        let disk = self.find_disk(nexus);
        let slot = &mut self.slots[usize::from(id.index)];
        slot.task.cancel();
        slot.begin_command(id, disk, TagAttribute::Simple);
        let code = match refusal {
            CheckConditionCause::Overlapped => 0x4e00,
            CheckConditionCause::InitiatorError => 0x4800,
            CheckConditionCause::DataPhase => 0x4b00,
        };
        slot.refusal_sense = Some(Sense::new(SenseKey::AbortedCommand, code));
    }

    /// Runs a task with its data, unless others come before it.
    pub fn run_or_queue_task(
        &mut self,
        memory: &mut MemoryGenerations,
        id: TaskSlotId,
        segments: &mut [iovec],
        len: u64,
    ) -> TaskStartOutcome {
        let slot = &mut self.slots[usize::from(id.index)];
        if let Some(sense) = slot.refusal_sense.take() {
            slot.stage = TaskStage::Finished;
            if slot.disk.is_none_or(|disk| {
                self.disks[disk]
                    .sense
                    .start_report_or_queue(id.index, sense)
            }) {
                return TaskStartOutcome::Finished(CHECK_CONDITION);
            }
            return TaskStartOutcome::Later;
        }
        slot.buffers = InitiatorBuffers::from_segments(segments, len);
        slot.memory_generation = Some(memory.begin_use_of_current_generation());
        if let Some(disk) = slot.disk {
            let attribute = slot.attribute;
            if self.disks[disk]
                .tasks
                .start_or_enqueue_task(id.index, attribute)
                == StartOrWait::Wait
            {
                slot.stage = TaskStage::Waiting;
                return TaskStartOutcome::Later;
            }
        }
        let step = slot.run_received_command();
        self.continue_task_from_step(memory, id.index, step);
        self.run_ready_tasks(memory);
        // If it has finished at once, that is returned here and not reported later.
        match self.finished.iter().position(|(other, _)| *other == id) {
            Some(at) => match self.finished.remove(at) {
                Some((_, status)) => TaskStartOutcome::Finished(status),
                None => TaskStartOutcome::Later,
            },
            None => TaskStartOutcome::Later,
        }
    }

    /// Continues one task: executes this step and those after it, until the task waits or has finished.
    fn continue_task_from_step(
        &mut self,
        memory: &mut MemoryGenerations,
        index: u16,
        mut step: scsi::AdapterStep,
    ) {
        loop {
            let slot = &mut self.slots[usize::from(index)];
            step = match step {
                scsi::AdapterStep::Submit(request) => {
                    return self.queue_for_submit(index, QueuedRequestOrCall::Request(request));
                }
                scsi::AdapterStep::Wait => {
                    slot.stage = TaskStage::Running;
                    return;
                }
                scsi::AdapterStep::Call => match slot.task.requested_disk_call() {
                    Some(call) => {
                        return self.queue_for_submit(index, QueuedRequestOrCall::Call(call));
                    }
                    None => slot.task.on_step_completed(Err(Errno::OPNOTSUPP)),
                },
                // There is only one initiator, so there are no tasks of others to end.
                scsi::AdapterStep::SettlePreempted => slot.task.on_step_completed(Ok(())),
                scsi::AdapterStep::Finished => return self.finish_task(memory, index),
            };
        }
    }

    /// Queues work of a task for [`DisksAndTasks::submit_queued`].
    fn queue_for_submit(&mut self, index: u16, work: QueuedRequestOrCall) {
        let stage = &mut self.slots[usize::from(index)].stage;
        if *stage == TaskStage::Running {
            *stage = TaskStage::Submitted;
        }
        self.queued.push_back((index, work));
    }

    /// Ends a task that has finished, or that was aborted. Its status is reported at once, unless its sense data must
    /// wait.
    fn finish_task(&mut self, memory: &mut MemoryGenerations, index: u16) {
        self.release_memory_and_admit_next(memory, index);
        let slot = &mut self.slots[usize::from(index)];
        if slot.stage == TaskStage::Aborted {
            slot.stage = TaskStage::Free;
            return self.queue_status_for_chip(index, CHECK_CONDITION);
        }
        slot.stage = TaskStage::Finished;
        let status = slot.task.status();
        if status == Status::CheckCondition
            && let (Some(disk), Some(sense)) = (slot.disk, slot.task.unencoded_sense())
            && !self.disks[disk].sense.start_report_or_queue(index, sense)
        {
            return;
        }
        self.queue_status_for_chip(index, status as u8);
    }

    /// Releases a task's memory, and removes it from its disk's task set, which admits tasks that waited for it.
    fn release_memory_and_admit_next(&mut self, memory: &mut MemoryGenerations, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        if let Some(generation) = slot.memory_generation.take() {
            memory.end_use_of_generation(generation);
        }
        slot.buffers = InitiatorBuffers::NONE;
        if let Some(disk) = slot.disk {
            let admitted = &mut self.admitted;
            self.disks[disk]
                .tasks
                .finish_task_and_start_others(slot.attribute, |next| admitted.push_back(next));
        }
    }

    /// Queues the status of a finished task, which the chip gets by [`DisksAndTasks::take_next_finished`].
    fn queue_status_for_chip(&mut self, index: u16, status: u8) {
        let id = self.slots[usize::from(index)].id;
        self.finished.push_back((id, status));
    }

    /// Starts tasks whose turn has come, and continues those that were woken.
    fn run_ready_tasks(&mut self, memory: &mut MemoryGenerations) {
        loop {
            if let Some(index) = self.admitted.pop_front() {
                let step = self.slots[usize::from(index)].run_received_command();
                self.continue_task_from_step(memory, index, step);
                continue;
            }
            let Some(token) = self.resumed.pop() else {
                return;
            };
            if let Ok(index) = u16::try_from(token)
                && let Some(slot) = self.slots.get_mut(usize::from(index))
                && slot.stage == TaskStage::Running
                && let Some(step) = slot.task.on_resumed()
            {
                self.continue_task_from_step(memory, index, step);
            }
        }
    }

    /// Frees the slot of a task that has finished. `reported`: the initiator has its status; otherwise it was aborted.
    pub fn release_slot_and_update_sense(&mut self, id: TaskSlotId, reported: bool) {
        self.slots[usize::from(id.index)].stage = TaskStage::Free;
        self.end_report_and_start_next(id.index, reported);
    }

    /// Ends a task's report in its disk's [`SenseReportQueue`]; another failed task may report its status then.
    fn end_report_and_start_next(&mut self, index: u16, reported: bool) {
        if let Some(disk) = self.slots[usize::from(index)].disk {
            let reports = &mut self.disks[disk].sense;
            reports.on_task_released(index, reported, self.now_ns);
            if let Some(next) = reports.take_next_to_report(self.now_ns) {
                self.queue_status_for_chip(next, CHECK_CONDITION);
            }
        }
    }
}
