//! Starts, steps and completes commands that need a task: all but plain reads and writes, and plain ones off the
//! [fast path](crate::fast_path).

use block::{DiskIo, Request};
use engine::Errno;
use scsi::{AdapterStep, DataPhase};
use virtqueue::{Chain, ChainId};

use super::{Queue, probes};
use crate::address::Address;
use crate::command_parser::ParsedHeader;
use crate::device::NEXUS;
use crate::error::RequestError;
use crate::slots::SlotState;
use crate::wire::Response;

impl Queue {
    /// Begins any command, or rejects a chain that is none.
    #[inline(never)]
    pub(super) fn parse_and_start_or_refuse(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        chain: &Chain,
        io: &mut impl DiskIo,
    ) -> Result<(), RequestError> {
        self.count_and_end_submission_run();
        let parsed = ParsedHeader::check_lengths_and_parse(chain, self.sizes)?;
        let size = self.slots.capacity();
        let Some((index, slot)) = self.slots.allocate() else {
            return Err(RequestError::TooMany(size));
        };
        let has_both_directions =
            parsed.fill_slot_with_header_and_segments(slot, chain, self.sizes);
        slot.id = id;
        slot.admit_time = self.batch_admit_time;
        let (lun, tag, attribute) = (parsed.lun, slot.tag, slot.attribute);
        let address = Address::decode(lun);
        slot.address = address.unwrap_or(Address { target: 0, lun: 0 });
        if probes::is_start_traced() {
            probes::fire_started(&self.name, slot);
        }
        let unit_index = address.and_then(|address| self.table.find_target_and_disk(address));
        let Some(unit_index) = unit_index else {
            self.apply_ring_cancellations(None);
            self.refuse_command(ring, index, Response::BadTarget);
            return Ok(());
        };
        slot.unit_index = unit_index;
        let address = slot.address;
        if !self.ring_cancellations.is_empty()
            && let Some(response) = self.apply_ring_cancellations(Some((address, tag)))
        {
            self.refuse_command(ring, index, response);
            return Ok(());
        }
        if has_both_directions {
            // Data in both directions is not offered.
            self.refuse_command(ring, index, Response::Failure);
            return Ok(());
        }
        if let Some(tasks) = self.table.task_set_of_unit(unit_index)
            && tasks.start_or_enqueue_task(index, attribute) == scsi::StartOrWait::Wait
        {
            self.slots.get_mut(index).state = SlotState::Waits;
            return Ok(());
        }
        if self.start_task(ring, index, io) {
            self.pushed_outside_completions = true;
            self.start_ready_commands(ring, io);
        }
        Ok(())
    }

    /// Runs the task of a command whose turn it is. True: it is finished already.
    fn start_task(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        io: &mut impl DiskIo,
    ) -> bool {
        let slot = self.slots.get_mut(index);
        slot.state = SlotState::Runs;
        let view = self.table.target_view_of_unit_mut(slot.unit_index);
        let phase = slot.task.receive(view, slot.address.lun, NEXUS, &slot.cdb);
        let fits = match phase {
            DataPhase::Status => true,
            DataPhase::DataIn(bytes) => slot.data_is_for_guest && bytes <= slot.data_len,
            DataPhase::DataOut(bytes) => !slot.data_is_for_guest && bytes <= slot.data_len,
        };
        if !fits {
            slot.task.cancel();
            slot.cancelled = Some(Response::Overrun);
            self.finish_command_and_ready_others(ring, index);
            return true;
        }
        // A list has at most as many segments as a chain.
        let count = u32::try_from(slot.data.len()).unwrap_or(u32::MAX);
        // SAFETY: the segments are checked guest memory, held for the slot's generation; list and task stay in the
        // slot, which is not released before the task is finished.
        let step = unsafe { slot.task.run(slot.data.as_mut_ptr(), count, slot.data_len) };
        self.run_steps(ring, index, step, io)
    }

    /// Executes a step of a task, and those that follow at once. True: it is finished.
    fn run_steps(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        mut step: AdapterStep,
        io: &mut impl DiskIo,
    ) -> bool {
        loop {
            let slot = self.slots.get_mut(index);
            let task = &mut slot.task;
            match step {
                AdapterStep::Submit(request) => match slot.unit_index.disk {
                    Some(disk) => {
                        self.submit_or_defer(index, disk, request, io);
                        return false;
                    }
                    // A unit that was added after the disks were set.
                    None => step = task.on_step_completed(Err(Errno::NODEV)),
                },
                AdapterStep::Finished => {
                    self.finish_command_and_ready_others(ring, index);
                    return true;
                }
                AdapterStep::Wait => return false,
                AdapterStep::Call => match (slot.unit_index.disk, task.requested_disk_call()) {
                    (Some(disk), Some(call)) => {
                        io.submit_blocking_call(disk, call, index);
                        return false;
                    }
                    _ => step = task.on_step_completed(Err(Errno::NODEV)),
                },
                // There is one initiator: it can preempt no other's tasks.
                AdapterStep::SettlePreempted => step = task.on_step_completed(Ok(())),
            }
        }
    }

    /// Submits a block request of a command, or defers it until its disk has room.
    pub(super) fn submit_or_defer(
        &mut self,
        index: u32,
        disk: u32,
        mut request: Request,
        io: &mut impl DiskIo,
    ) {
        if io.room(disk) == 0 {
            self.deferred_requests.push_back((index, request));
            return;
        }
        let slot = self.slots.get_mut(index);
        self.counts
            .count_submitted_and_set_kind(slot, disk, &request);
        if telemetry::tracepoints::request_submit::enabled() {
            probes::fire_submitted(&self.name, slot, &request);
        }
        request.token = index.into();
        // SAFETY: the segments are the slot's, see `start_task`, or the task's own, which stay until it is finished.
        unsafe { io.submit(disk, request) };
    }

    /// Completes a block request of a task, or one that fails or that others wait for.
    #[inline(never)]
    pub(super) fn complete_command_step(
        &mut self,
        ring: &mut virtqueue::Queue,
        slot: u32,
        result: Result<(), Errno>,
        now: u64,
        io: &mut impl DiskIo,
    ) {
        self.count_and_end_completion_run();
        self.now = now;
        if self.slots.get(slot).state == SlotState::Transfers {
            self.move_plain_transfer_to_task(slot);
        }
        if result.is_err() {
            self.counts.count_failed_block_request(self.slots.get(slot));
        }
        let step = self.slots.get_mut(slot).task.on_step_completed(result);
        if self.run_steps(ring, slot, step, io) {
            self.start_ready_commands(ring, io);
        }
    }

    /// Resumes a command that waited for another one.
    pub fn resume_command(
        &mut self,
        ring: &mut virtqueue::Queue,
        token: u64,
        io: &mut impl DiskIo,
    ) {
        let known = u32::try_from(token)
            .ok()
            .filter(|index| self.slots.in_flight_slots().any(|(used, _)| used == *index));
        if let Some(index) = known
            && self.slots.get(index).state == SlotState::Runs
            && let Some(step) = self.slots.get_mut(index).task.on_resumed()
            && self.run_steps(ring, index, step, io)
        {
            self.pushed_outside_completions = true;
            self.start_ready_commands(ring, io);
        }
    }

    /// Starts commands that waited for those that have finished.
    #[inline(never)]
    pub(super) fn start_ready_commands(
        &mut self,
        ring: &mut virtqueue::Queue,
        io: &mut impl DiskIo,
    ) {
        while let Some(index) = self.ready_slots.pop_front() {
            self.start_task(ring, index, io);
        }
    }
}
