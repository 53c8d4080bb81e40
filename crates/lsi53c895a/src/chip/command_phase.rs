//! The command phase: the target receives a command, runs it as a task, and enters the status phase when that is done.

use crate::chip::Chip;
use crate::chip::host_traits::{
    CheckConditionCause, PciBus, PhaseAfterCommand, TargetAndLun, Targets, TaskSlotId,
    TaskStartOutcome,
};
use crate::chip::messages::AfterMessages;
use crate::chip::pause_reason::PauseReason;
use crate::chip::scsi_bus::TargetStage;

const TASK_SET_FULL: u8 = 0x28;

/// How long a command descriptor block is, by the group of its operation code (SAM-2, 5.2.2). Vendors' own are as long
/// as they come.
fn cdb_bytes_of_opcode(opcode: u8, received: usize) -> usize {
    match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        4 => 16,
        5 => 12,
        _ => received,
    }
}

impl Chip {
    /// How many bytes of a command the target can still receive. Firmware sends 16 whatever the command is, so it takes
    /// as many.
    pub(crate) fn cdb_room_bytes(&self) -> usize {
        self.connection()
            .map_or(0, |connection| connection.cdb.len() - connection.cdb_len)
    }

    /// The target receives bytes of the command, which one block move sends. When it has all, the task begins.
    pub(crate) fn receive_command_bytes_and_begin_task<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        bytes: &[u8],
    ) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        let at = connection.cdb_len;
        connection.cdb[at..at + bytes.len()].copy_from_slice(bytes);
        connection.cdb_len += bytes.len();
        let whole = cdb_bytes_of_opcode(connection.cdb[0], connection.cdb_len);
        if connection.cdb_len < whole {
            return;
        }
        let cdb = connection.cdb;
        let nexus = TargetAndLun {
            target: connection.target,
            lun: connection.lun,
        };
        let (tag, attribute) = (connection.tag, connection.attribute);
        let overlapped = self.tasks.find_unaborted(nexus, tag);
        if let Some(other) = overlapped {
            self.tasks.abort_and_release_or_drain(host, other);
        }
        let id = self.tasks.allocate(nexus, tag);
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.task = id;
        let Some(id) = id else {
            connection.status = TASK_SET_FULL;
            connection.stage = TargetStage::Status;
            return;
        };
        if overlapped.is_some() {
            host.replace_by_failing_task(id, nexus, CheckConditionCause::Overlapped);
            return self.run_connected_task_and_maybe_disconnect(host, id);
        }
        let (to_initiator, bytes) = match host.receive_command(id, nexus, attribute, &cdb[..whole])
        {
            PhaseAfterCommand::DataIn(bytes) => (true, bytes),
            PhaseAfterCommand::DataOut(bytes) => (false, bytes),
            PhaseAfterCommand::Status => (false, 0),
        };
        if bytes == 0 {
            return self.run_connected_task_and_maybe_disconnect(host, id);
        }
        if let Some(task) = self.tasks.unaborted_mut(id) {
            task.data
                .set_direction_and_wanted_bytes(to_initiator, bytes);
        }
        if let Some(connection) = self.connection_mut() {
            connection.stage = TargetStage::Data;
        }
    }

    /// Runs the connected task, which has all its data or needs none. If it does not finish at once, its target may
    /// disconnect.
    pub(crate) fn run_connected_task_and_maybe_disconnect<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        id: TaskSlotId,
    ) {
        let Some(data) = self.tasks.mark_running_and_get_data(id) else {
            return;
        };
        let has_collected_any = data.has_collected_any();
        let (segments, len) = data.segments_and_len();
        let step = host.run_or_queue_task(id, segments, len);
        if let TaskStartOutcome::Finished(status) = step {
            self.tasks.mark_finished_or_release(id, status, true);
        }
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.stage = TargetStage::Busy;
        connection.after_messages = AfterMessages::Busy;
        if step == TaskStartOutcome::Later && connection.may_disconnect {
            self.queue_disconnect_message(has_collected_any);
            self.enter_next_phase_or_leave_bus();
        }
    }

    /// Lets the connected task, which still collects data, fail with CHECK CONDITION.
    pub(crate) fn fail_connected_task<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
        refusal: CheckConditionCause,
    ) {
        let Some(id) = self.connection().and_then(|connection| connection.task) else {
            return;
        };
        let Some(task) = self.tasks.unaborted(id) else {
            return;
        };
        let nexus = task.nexus;
        self.tasks.drop_memory_of_failing_task(id);
        host.replace_by_failing_task(id, nexus, refusal);
        self.run_connected_task_and_maybe_disconnect(host, id);
    }

    /// Returns to the MESSAGE OUT phase, since a message has ended the command in its middle: the target receives
    /// further messages before it goes on.
    pub(crate) fn return_to_message_out(&mut self) {
        if let Some(connection) = self.connection_mut() {
            connection.stage = TargetStage::MessageOut;
        }
    }

    /// Lets a connected target that waits for its task enter the status phase, once the task is done and its data are
    /// in memory.
    pub(crate) fn write_back_and_enter_status_if_done<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let id = self
            .connection()
            .and_then(|connection| connection.task)
            .ok_or(PauseReason::Bus)?;
        let status = self.tasks.finished_status(id).ok_or(PauseReason::Bus)?;
        self.write_back_bounce_buffers(host, id)?;
        if let Some(connection) = self.connection_mut() {
            connection.status = status;
            connection.stage = TargetStage::Status;
        }
        Ok(())
    }

    /// The initiator has received the status byte: the task is over, and COMMAND COMPLETE follows.
    pub(crate) fn release_task_and_queue_command_complete<H: Targets>(&mut self, host: &mut H) {
        if let Some(id) = self
            .connection_mut()
            .and_then(|connection| connection.task.take())
        {
            self.tasks.release_slot(id);
            host.release_finished_task(id, true);
        }
        self.queue_command_complete_message();
        self.enter_next_phase_or_leave_bus();
    }
}
