//! The command phase, and a command's way from there to its status.

use crate::chip::core::Chip;
use crate::chip::link::{Next, Stage};
use crate::chip::ports::{Bus, Nexus, Phase, Refusal, Step, Targets, TaskId};
use crate::chip::scripts::Pause;

const TASK_SET_FULL: u8 = 0x28;

/// How long a command descriptor block is, by the group of its operation code (SAM-2, 5.2.2). Vendors' own are as long as they come.
fn cdb_bytes(opcode: u8, given: usize) -> usize {
    match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        4 => 16,
        5 => 12,
        _ => given,
    }
}

impl Chip {
    /// How many bytes of a command the target still takes. Firmware sends 16 whatever the command is, so it takes as many.
    pub(crate) fn command_room(&self) -> usize {
        self.connection()
            .map_or(0, |connection| connection.cdb.len() - connection.cdb_len)
    }

    /// The target has these bytes more of the command, in one block move.
    pub(crate) fn take_command<H: Bus + Targets>(&mut self, host: &mut H, bytes: &[u8]) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        let at = connection.cdb_len;
        connection.cdb[at..at + bytes.len()].copy_from_slice(bytes);
        connection.cdb_len += bytes.len();
        let whole = cdb_bytes(connection.cdb[0], connection.cdb_len);
        if connection.cdb_len < whole {
            return;
        }
        let cdb = connection.cdb;
        let nexus = Nexus {
            target: connection.target,
            lun: connection.lun,
        };
        let (tag, attribute) = (connection.tag, connection.attribute);
        let overlapped = self.tasks.find(nexus, tag);
        if let Some(other) = overlapped {
            self.tasks.abort(host, other);
        }
        let id = self.tasks.take(nexus, tag);
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.task = id;
        let Some(id) = id else {
            connection.status = TASK_SET_FULL;
            connection.stage = Stage::Status;
            return;
        };
        if overlapped.is_some() {
            host.refuse(id, nexus, Refusal::Overlapped);
            return self.run_task(host, id);
        }
        let (to_initiator, bytes) = match host.receive(id, nexus, attribute, &cdb[..whole]) {
            Phase::DataIn(bytes) => (true, bytes),
            Phase::DataOut(bytes) => (false, bytes),
            Phase::Status => (false, 0),
        };
        if bytes == 0 {
            return self.run_task(host, id);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.data.expect(to_initiator, bytes);
        }
        if let Some(connection) = self.connection_mut() {
            connection.stage = Stage::Data;
        }
    }

    /// The connected task has all its data, or has none: the target gets to work.
    pub(crate) fn run_task<H: Bus + Targets>(&mut self, host: &mut H, id: TaskId) {
        let Some(data) = self.tasks.runs(id) else {
            return;
        };
        let moved_any = data.moved_any();
        let (segments, len) = data.collected();
        let step = host.run(id, segments, len);
        if let Step::Finished(status) = step {
            self.tasks.finished(id, status, true);
        }
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.stage = Stage::Busy;
        connection.next = Next::Busy;
        if step == Step::Later && connection.may_disconnect {
            self.queue_disconnect_message(moved_any);
            self.settle();
        }
    }

    /// The connected task, which still collects data, is to end in CHECK CONDITION.
    pub(crate) fn refuse<H: Bus + Targets>(&mut self, host: &mut H, refusal: Refusal) {
        let Some(id) = self.connection().and_then(|connection| connection.task) else {
            return;
        };
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let nexus = task.nexus;
        self.tasks.drop_collected(id);
        host.refuse(id, nexus, refusal);
        self.run_task(host, id);
    }

    /// While a message is being heard, the command went on: to there the target goes after the message.
    pub(crate) fn resume_after_message(&mut self) {
        if let Some(connection) = self.connection_mut() {
            connection.stage = Stage::MessageOut;
        }
    }

    /// A connected target that waits for its task: its status, if it is done.
    pub(crate) fn answer<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let id = self
            .connection()
            .and_then(|connection| connection.task)
            .ok_or(Pause::Bus)?;
        let status = self.tasks.status(id).ok_or(Pause::Bus)?;
        self.write_back(host, id)?;
        if let Some(connection) = self.connection_mut() {
            connection.status = status;
            connection.stage = Stage::Status;
        }
        Ok(())
    }

    /// The status byte was taken: the task is over.
    pub(crate) fn status_taken<H: Targets>(&mut self, host: &mut H) {
        if let Some(id) = self
            .connection_mut()
            .and_then(|connection| connection.task.take())
        {
            self.tasks.release(id);
            host.ended(id, true);
        }
        self.queue_complete_message();
        self.settle();
    }
}
