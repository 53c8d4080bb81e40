//! Commands that need a task: all but plain reads and writes, and plain ones off the [fast path](crate::fast_path).

use block::{DiskIo, Request};
use engine::Errno;
use scsi::{Phase, Step};
use virtqueue::{Chain, ChainId};

use super::{Queue, probes};
use crate::address::Address;
use crate::command::ParsedCommand;
use crate::device::NEXUS;
use crate::error::RequestError;
use crate::slots::State;
use crate::wire::Response;

impl Queue {
    /// Begins any command, or rejects a chain that is none.
    #[inline(never)]
    pub(super) fn start(
        &mut self,
        ring: &mut virtqueue::Queue,
        id: ChainId,
        chain: &Chain,
        io: &mut impl DiskIo,
    ) -> Result<(), RequestError> {
        self.end_submission_run();
        let parse = ParsedCommand::new(chain, self.sizes)?;
        let size = self.slots.size();
        let Some((index, slot)) = self.slots.allocate() else {
            return Err(RequestError::TooMany(size));
        };
        let both = parse.fill(slot, chain, self.sizes);
        slot.id = id;
        slot.stamp = self.taken;
        let (lun, tag, attribute) = (parse.lun, slot.tag, slot.attribute);
        let address = Address::decode(lun);
        slot.address = address.unwrap_or(Address { target: 0, lun: 0 });
        if probes::begin_wanted() {
            probes::started(&self.name, slot);
        }
        let place = address.and_then(|address| self.table.find(address));
        let Some(place) = place else {
            self.pass_fences(None);
            self.refuse(ring, index, Response::BadTarget);
            return Ok(());
        };
        slot.place = place;
        let address = slot.address;
        if !self.fences.is_empty()
            && let Some(response) = self.pass_fences(Some((address, tag)))
        {
            self.refuse(ring, index, response);
            return Ok(());
        }
        if both {
            // Data in both directions is not offered.
            self.refuse(ring, index, Response::Failure);
            return Ok(());
        }
        if let Some(tasks) = self.table.tasks(place)
            && tasks.admit(index, attribute) == scsi::Admission::Wait
        {
            self.slots.get_mut(index).state = State::Waits;
            return Ok(());
        }
        if self.run_task(ring, index, io) {
            self.answered = true;
            self.start_ready(ring, io);
        }
        Ok(())
    }

    /// Runs the task of a command whose turn it is. True: it is finished already.
    fn run_task(&mut self, ring: &mut virtqueue::Queue, index: u32, io: &mut impl DiskIo) -> bool {
        let slot = self.slots.get_mut(index);
        slot.state = State::Runs;
        let view = self.table.view(slot.place);
        let phase = slot.task.receive(view, slot.address.lun, NEXUS, &slot.cdb);
        let fits = match phase {
            Phase::Status => true,
            Phase::DataIn(bytes) => slot.reads && bytes <= slot.data_len,
            Phase::DataOut(bytes) => !slot.reads && bytes <= slot.data_len,
        };
        if !fits {
            slot.task.cancel();
            slot.cancelled = Some(Response::Overrun);
            self.finish(ring, index);
            return true;
        }
        // A list has at most as many segments as a chain.
        let count = u32::try_from(slot.data.len()).unwrap_or(u32::MAX);
        // SAFETY: the segments are checked guest memory, held for the slot's generation; list and task stay in the
        // slot, which is not released before the task is finished.
        let step = unsafe { slot.task.run(slot.data.as_mut_ptr(), count, slot.data_len) };
        self.run_step(ring, index, step, io)
    }

    /// Executes a step of a task, and those that follow at once. True: it is finished.
    fn run_step(
        &mut self,
        ring: &mut virtqueue::Queue,
        index: u32,
        mut step: Step,
        io: &mut impl DiskIo,
    ) -> bool {
        loop {
            let slot = self.slots.get_mut(index);
            let task = &mut slot.task;
            match step {
                Step::Submit(request) => match slot.place.disk {
                    Some(disk) => {
                        self.submit(index, disk, request, io);
                        return false;
                    }
                    // A unit that was added after the disks were set.
                    None => step = task.completed(Err(Errno::NODEV)),
                },
                Step::Finished => {
                    self.finish(ring, index);
                    return true;
                }
                Step::Wait => return false,
                Step::Call => match (slot.place.disk, task.disk_call()) {
                    (Some(disk), Some(call)) => {
                        io.call(disk, call, index);
                        return false;
                    }
                    _ => step = task.completed(Err(Errno::NODEV)),
                },
                // There is one initiator: it can preempt no other's tasks.
                Step::SettlePreempted => step = task.completed(Ok(())),
            }
        }
    }

    pub(super) fn submit(
        &mut self,
        index: u32,
        disk: u32,
        mut request: Request,
        io: &mut impl DiskIo,
    ) {
        if io.room(disk) == 0 {
            self.deferred.push_back((index, request));
            return;
        }
        let slot = self.slots.get_mut(index);
        self.counts.asks(slot, disk, &request);
        if telemetry::tracepoints::request_submit::enabled() {
            probes::submitted(&self.name, slot, &request);
        }
        request.token = index.into();
        // SAFETY: the segments are the slot's, see `run_task`, or the task's own, which stay until it is finished.
        unsafe { io.submit(disk, request) };
    }

    /// Completes a block request of a task, or one that fails or that others wait for.
    #[inline(never)]
    pub(super) fn complete_command(
        &mut self,
        ring: &mut virtqueue::Queue,
        slot: u32,
        result: Result<(), Errno>,
        now: u64,
        io: &mut impl DiskIo,
    ) {
        self.end_completion_run();
        self.now = now;
        if self.slots.get(slot).state == State::Transfers {
            self.adopt(slot);
        }
        if result.is_err() {
            self.counts.failed(self.slots.get(slot));
        }
        let step = self.slots.get_mut(slot).task.completed(result);
        if self.run_step(ring, slot, step, io) {
            self.start_ready(ring, io);
        }
    }

    /// Resumes a command that waited for another one.
    pub fn resume(&mut self, ring: &mut virtqueue::Queue, token: u64, io: &mut impl DiskIo) {
        let known = u32::try_from(token)
            .ok()
            .filter(|index| self.slots.used().any(|(used, _)| used == *index));
        if let Some(index) = known
            && self.slots.get(index).state == State::Runs
            && let Some(step) = self.slots.get_mut(index).task.resumed()
            && self.run_step(ring, index, step, io)
        {
            self.answered = true;
            self.start_ready(ring, io);
        }
    }

    /// Starts commands that waited for those that have finished.
    #[inline(never)]
    pub(super) fn start_ready(&mut self, ring: &mut virtqueue::Queue, io: &mut impl DiskIo) {
        while let Some(index) = self.ready.pop_front() {
            self.run_task(ring, index, io);
        }
    }
}
