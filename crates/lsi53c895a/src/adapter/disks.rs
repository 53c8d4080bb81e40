//! The targets on the chip's SCSI bus: order of tasks, sense data, and requests that wait for a backend.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chip::{
    AbortOutcome, MAX_TASKS, PhaseAfterCommand, Refusal, ResetScope, TagAttribute, TargetAndLun,
    TaskId, TaskOutcome,
};
use block::{DiskCall, DiskIo, Request};
use engine::Errno;
use libc::iovec;
use scsi::{
    NexusPorts, Sense, SenseKey, StartOrWait, Status, Target, TargetView, TaskSet, TransportId,
    Waker,
};

use crate::adapter::memory_generations::MemoryGenerations;
use crate::adapter::pending_sense::PendingSense;
use crate::adapter::resumed_tasks::ResumedTasks;
use crate::adapter::slot::{InitiatorBuffers, Slot, TaskStage};
use crate::adapter::{Disk, DiskAddressError, INITIATOR};

/// The chip, which is the only initiator on this bus, for the crate `scsi`.
const INITIATOR_NEXUS: scsi::NexusNumber = scsi::NexusNumber(0);

const REQUEST_SENSE: u8 = 0x03;

const CHECK_CONDITION: u8 = Status::CheckCondition as u8;

/// Work of a task that is to be submitted.
enum QueuedWork {
    Request(Request),
    Call(DiskCall),
}

/// A disk on the bus, with its tasks and sense data.
struct BusDisk {
    disk: Disk,
    tasks: TaskSet<u16>,
    sense: PendingSense,
}

/// All disks on the bus, and all tasks.
pub struct Disks {
    targets: [Option<TargetView>; 16],
    disks: Vec<BusDisk>,
    slots: Vec<Slot>,
    /// Requests and calls that wait for a backend.
    queued: VecDeque<(u16, QueuedWork)>,
    /// The number of requests that were submitted and are not done.
    submitted_count: usize,
    /// Tasks whose turn it is.
    admitted: VecDeque<u16>,
    /// Finished tasks and their status, for the chip.
    finished: VecDeque<(TaskId, u8)>,
    resumed: Arc<ResumedTasks>,
    now_ns: u64,
}

// SAFETY: queued requests point to lists of the chip's and of tasks, which move between threads only with them.
unsafe impl Send for Disks {}

impl Disks {
    /// Builds the targets of these disks, each of which needs an address of its own.
    pub fn at_bus_addresses(disks: &[Disk]) -> Result<Self, DiskAddressError> {
        let mut targets: [Option<Arc<Target>>; 16] = Default::default();
        for disk in disks {
            let (target, lun) =
                DiskAddressError::check_address(disk.target.into(), disk.lun.into())?;
            let units = targets[usize::from(target)].get_or_insert_with(Target::new);
            let added = units.add(lun.into(), disk.unit.clone());
            added.map_err(|_| DiskAddressError::Taken { target, lun })?;
        }
        let ports = NexusPorts {
            initiator: TransportId::Parallel {
                address: INITIATOR.into(),
            },
            target: 1,
        };
        for target in targets.iter().flatten() {
            target.attach_initiator(INITIATOR_NEXUS, &ports);
        }
        let resumed = Arc::new(ResumedTasks::default());
        let slot = |token| {
            let resume = resumed.clone();
            Slot::new(Waker { resume, token })
        };
        Ok(Disks {
            targets: targets.map(|target| target.map(TargetView::new)),
            disks: disks
                .iter()
                .map(|disk| BusDisk {
                    disk: disk.clone(),
                    tasks: TaskSet::default(),
                    sense: PendingSense::default(),
                })
                .collect(),
            slots: (0..MAX_TASKS as u64).map(slot).collect(),
            queued: VecDeque::new(),
            submitted_count: 0,
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
    pub fn advance_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        for disk in 0..self.disks.len() {
            if let Some(next) = self.disks[disk].sense.take_next_to_report(now_ns) {
                self.queue_status_for_chip(next, CHECK_CONDITION);
            }
        }
    }

    /// When the next timeout for REQUEST SENSE expires: call [`Disks::advance_time`] then.
    pub fn request_sense_deadline_ns(&self) -> Option<u64> {
        let waits = self
            .disks
            .iter()
            .filter_map(|bus_disk| bus_disk.sense.request_sense_deadline_ns());
        waits.min()
    }

    /// The next finished task and its status, for the chip.
    pub fn take_next_finished(&mut self) -> Option<(TaskId, u8)> {
        self.finished.pop_front()
    }

    /// Whether finished tasks wait to be passed to the chip.
    pub fn has_finished_tasks(&self) -> bool {
        !self.finished.is_empty()
    }

    /// The number of requests that were submitted and are not done.
    pub fn submitted_count(&self) -> usize {
        self.submitted_count
    }

    /// The number of requests for [`Disks::submit_queued`].
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
                QueuedWork::Request(request) => request,
                QueuedWork::Call(call) => {
                    self.submitted_count += 1;
                    io.submit_blocking_call(disk, call, index.into());
                    continue;
                }
            };
            if io.room(disk) == 0 {
                self.queued.push_back((index, QueuedWork::Request(request)));
                continue;
            }
            self.submitted_count += 1;
            request.token = index.into();
            // SAFETY: the task has made the request of segments that are its own or the chip's, and keeps its stage, and
            // so its slot, until `on_step_completed`.
            unsafe { io.submit(disk, request) };
        }
        self.queued.is_empty()
    }

    /// Completes the request of the task in this slot, and executes what it made possible.
    pub fn complete_request(
        &mut self,
        memory: &mut MemoryGenerations,
        slot: u32,
        result: Result<(), Errno>,
    ) {
        let Ok(index) = u16::try_from(slot) else {
            return;
        };
        self.submitted_count -= 1;
        let step = self.slots[usize::from(index)]
            .task
            .on_step_completed(result);
        self.execute_steps(memory, index, step);
        self.run_ready_tasks(memory);
    }

    /// The index of the disk that is this logical unit.
    fn find_disk(&self, nexus: TargetAndLun) -> Option<usize> {
        self.disks.iter().position(|bus_disk| {
            (bus_disk.disk.target, bus_disk.disk.lun) == (nexus.target, nexus.lun)
        })
    }

    /// Receives a command: finds its disk, and returns which data it needs.
    pub fn receive_command(
        &mut self,
        id: TaskId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        let disk = self.find_disk(nexus);
        let slot = &mut self.slots[usize::from(id.index)];
        slot.begin_command(id, disk, attribute);
        if let Some(disk) = disk {
            let pending_sense = &mut self.disks[disk].sense;
            // Tagged commands may have been in flight when the failure was reported.
            if attribute == TagAttribute::Untagged || cdb.first() == Some(&REQUEST_SENSE) {
                if let Some(sense) = pending_sense.take_sense() {
                    slot.task.set_previous_sense(sense);
                }
                if let Some(next) = pending_sense.take_next_to_report(self.now_ns) {
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
    pub fn replace_by_failing_task(&mut self, id: TaskId, nexus: TargetAndLun, refusal: Refusal) {
        let disk = self.find_disk(nexus);
        let slot = &mut self.slots[usize::from(id.index)];
        slot.task.cancel();
        slot.begin_command(id, disk, TagAttribute::Simple);
        let code = match refusal {
            Refusal::Overlapped => 0x4e00,
            Refusal::InitiatorError => 0x4800,
            Refusal::DataPhase => 0x4b00,
        };
        slot.refusal_sense = Some(Sense::new(SenseKey::AbortedCommand, code));
    }

    /// Runs a task with its data, unless others come before it.
    pub fn run_or_queue_task(
        &mut self,
        memory: &mut MemoryGenerations,
        id: TaskId,
        segments: &mut [iovec],
        len: u64,
    ) -> TaskOutcome {
        let slot = &mut self.slots[usize::from(id.index)];
        if let Some(sense) = slot.refusal_sense.take() {
            slot.stage = TaskStage::Finished;
            if slot.disk.is_none_or(|disk| {
                self.disks[disk]
                    .sense
                    .start_report_or_queue(id.index, sense)
            }) {
                return TaskOutcome::Finished(CHECK_CONDITION);
            }
            return TaskOutcome::Later;
        }
        slot.buffers = InitiatorBuffers::from_segments(segments, len);
        slot.memory_generation = Some(memory.acquire_current_generation());
        if let Some(disk) = slot.disk {
            let attribute = slot.attribute;
            if self.disks[disk].tasks.add_task(id.index, attribute) == StartOrWait::Wait {
                slot.stage = TaskStage::Waiting;
                return TaskOutcome::Later;
            }
        }
        let step = slot.run_received_command();
        self.execute_steps(memory, id.index, step);
        self.run_ready_tasks(memory);
        // If it has finished at once, that is returned here and not reported later.
        match self.finished.iter().position(|(other, _)| *other == id) {
            Some(at) => match self.finished.remove(at) {
                Some((_, status)) => TaskOutcome::Finished(status),
                None => TaskOutcome::Later,
            },
            None => TaskOutcome::Later,
        }
    }

    /// Executes a step of a task, and those after it, until it waits or has finished.
    fn execute_steps(&mut self, memory: &mut MemoryGenerations, index: u16, mut step: scsi::Step) {
        loop {
            let slot = &mut self.slots[usize::from(index)];
            step = match step {
                scsi::Step::Submit(request) => {
                    return self.queue_for_submit(index, QueuedWork::Request(request));
                }
                scsi::Step::Wait => {
                    slot.stage = TaskStage::Running;
                    return;
                }
                scsi::Step::Call => match slot.task.requested_disk_call() {
                    Some(call) => return self.queue_for_submit(index, QueuedWork::Call(call)),
                    None => slot.task.on_step_completed(Err(Errno::OPNOTSUPP)),
                },
                // There is only one initiator, so there are no tasks of others to end.
                scsi::Step::SettlePreempted => slot.task.on_step_completed(Ok(())),
                scsi::Step::Finished => return self.finish_task(memory, index),
            };
        }
    }

    /// Queues work of a task for [`Disks::submit_queued`].
    fn queue_for_submit(&mut self, index: u16, work: QueuedWork) {
        let stage = &mut self.slots[usize::from(index)].stage;
        if *stage == TaskStage::Running {
            *stage = TaskStage::Submitted;
        }
        self.queued.push_back((index, work));
    }

    /// Ends a task that has finished, or that was aborted. Its status is reported at once, unless its sense data must
    /// wait.
    fn finish_task(&mut self, memory: &mut MemoryGenerations, index: u16) {
        self.release_memory_and_queue_next(memory, index);
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
    fn release_memory_and_queue_next(&mut self, memory: &mut MemoryGenerations, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        if let Some(generation) = slot.memory_generation.take() {
            memory.release_generation(generation);
        }
        slot.buffers = InitiatorBuffers::NONE;
        if let Some(disk) = slot.disk {
            let admitted = &mut self.admitted;
            self.disks[disk]
                .tasks
                .finish_task(slot.attribute, |next| admitted.push_back(next));
        }
    }

    /// Queues the status of a finished task, which the chip gets by [`Disks::take_next_finished`].
    fn queue_status_for_chip(&mut self, index: u16, status: u8) {
        let id = self.slots[usize::from(index)].id;
        self.finished.push_back((id, status));
    }

    /// Starts tasks whose turn has come, and continues those that were woken.
    fn run_ready_tasks(&mut self, memory: &mut MemoryGenerations) {
        loop {
            if let Some(index) = self.admitted.pop_front() {
                let step = self.slots[usize::from(index)].run_received_command();
                self.execute_steps(memory, index, step);
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
                self.execute_steps(memory, index, step);
            }
        }
    }

    /// Aborts a task. If a request of it is in flight, its memory stays in use until that is done.
    pub fn abort_task(&mut self, memory: &mut MemoryGenerations, id: TaskId) -> AbortOutcome {
        let index = id.index;
        let slot = &mut self.slots[usize::from(index)];
        let aborted = match slot.stage {
            TaskStage::Free | TaskStage::Aborted => AbortOutcome::Done,
            TaskStage::Received => {
                slot.task.cancel();
                AbortOutcome::Done
            }
            TaskStage::Waiting => {
                slot.task.cancel();
                if let Some(generation) = slot.memory_generation.take() {
                    memory.release_generation(generation);
                }
                if let Some(disk) = slot.disk {
                    let admitted = &mut self.admitted;
                    self.disks[disk]
                        .tasks
                        .remove_waiting_and_start_others(index, |next| admitted.push_back(next));
                }
                AbortOutcome::Done
            }
            TaskStage::Running => {
                slot.task.cancel();
                self.release_memory_and_queue_next(memory, index);
                AbortOutcome::Done
            }
            TaskStage::Submitted => {
                slot.task.cancel();
                match self.queued.iter().position(|(queued, _)| *queued == index) {
                    Some(at) => {
                        self.queued.remove(at);
                        slot.task.on_step_completed(Err(Errno::CANCELED));
                        self.release_memory_and_queue_next(memory, index);
                        AbortOutcome::Done
                    }
                    None => AbortOutcome::Later,
                }
            }
            // Its status waits for that of another failed task, or was not reported yet.
            TaskStage::Finished => {
                self.finished.retain(|(finished, _)| *finished != id);
                self.end_report_and_start_next(index, false);
                AbortOutcome::Done
            }
        };
        self.slots[usize::from(index)].stage = match aborted {
            AbortOutcome::Done => TaskStage::Free,
            AbortOutcome::Later => TaskStage::Aborted,
        };
        self.run_ready_tasks(memory);
        aborted
    }

    /// Frees the slot of a task that has finished. `reported`: the initiator has its status; otherwise it was aborted.
    pub fn release_slot_and_update_sense(&mut self, id: TaskId, reported: bool) {
        self.slots[usize::from(id.index)].stage = TaskStage::Free;
        self.end_report_and_start_next(id.index, reported);
    }

    /// Ends a task's report in its disk's [`PendingSense`]; another failed task may report its status then.
    fn end_report_and_start_next(&mut self, index: u16, reported: bool) {
        if let Some(disk) = self.slots[usize::from(index)].disk {
            let pending_sense = &mut self.disks[disk].sense;
            pending_sense.on_task_released(index, reported, self.now_ns);
            if let Some(next) = pending_sense.take_next_to_report(self.now_ns) {
                self.queue_status_for_chip(next, CHECK_CONDITION);
            }
        }
    }

    /// Resets the logical units that a reset concerns, and drops their sense data.
    pub fn reset_units(&mut self, scope: ResetScope) {
        for bus_disk in &mut self.disks {
            let (concerned, reset) = match scope {
                ResetScope::Bus => (true, scsi::BusOrUnitReset::Bus),
                ResetScope::Target(target) => {
                    (bus_disk.disk.target == target, scsi::BusOrUnitReset::Unit)
                }
                ResetScope::Unit(nexus) => (
                    (bus_disk.disk.target, bus_disk.disk.lun) == (nexus.target, nexus.lun),
                    scsi::BusOrUnitReset::Unit,
                ),
            };
            if concerned {
                bus_disk.sense.reset();
                bus_disk.disk.unit.reset(reset);
            }
        }
    }
}
