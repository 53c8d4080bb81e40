//! Interface of a task and its adapter: the data phase of a command, the steps that the adapter executes for it (submit a
//! request, wait, call, end tasks), and the status.

use block::Request;

/// The status of a command (SAM-5, section 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Success.
    Good = 0x00,
    /// Failure, or an event to report: see the sense data.
    CheckCondition = 0x02,
    /// Another initiator has reserved the unit.
    ReservationConflict = 0x18,
    /// There are too many tasks.
    TaskSetFull = 0x28,
    /// Another initiator ended it.
    TaskAborted = 0x40,
}

/// The bus phase after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPhase {
    /// No data is moved. The command may still have to be run.
    Status,
    /// So many bytes for the initiator, if it has room.
    DataIn(u64),
    /// So many bytes of the initiator's.
    DataOut(u64),
}

/// What the adapter is to do for a task.
#[derive(Clone, Copy, Debug)]
pub enum AdapterStep {
    /// Submit this request to the node, and call [`Task::on_step_completed`](crate::Task::on_step_completed) when it is done. The adapter
    /// sets its token.
    Submit(Request),
    /// Wait for another task. The [`Waker`](crate::Waker) is called when it is this one's turn, from any thread, perhaps before
    /// this is returned: then call [`Task::on_resumed`](crate::Task::on_resumed).
    Wait,
    /// Run [`Task::requested_disk_call`](crate::Task::requested_disk_call) on a thread that may block, and call
    /// [`Task::on_step_completed`](crate::Task::on_step_completed) with its result.
    Call,
    /// Cancel all other tasks of the unit that the command was received for, if they belong to one of
    /// [`Task::preempted_nexuses`](crate::Task::preempted_nexuses), and call
    /// [`Task::on_step_completed`](crate::Task::on_step_completed) when none of their requests is in flight any more.
    SettlePreempted,
    /// The task is finished: status, sense data and the number of bytes are available.
    Finished,
}
