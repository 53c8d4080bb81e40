//! Steps of a task, as adapters get them.

use block::Request;

/// Comparison a command ended (SAM-5, section 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It was carried out.
    Good = 0x00,
    /// Not, or there is something to be said: see the sense data.
    CheckCondition = 0x02,
    /// Somebody else has reserved the unit.
    ReservationConflict = 0x18,
    /// There is too much to do.
    TaskSetFull = 0x28,
    /// Somebody else ended it.
    TaskAborted = 0x40,
}

/// What follows a command on a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The status: no data is moved. The command may still have to be run.
    Status,
    /// So many bytes for the initiator, if it has room.
    DataIn(u64),
    /// So many bytes of the initiator's.
    DataOut(u64),
}

/// What is to be done for a task.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Hand this to the node, and call [`Task::completed`](crate::Task::completed) when it is done. Its token is yet to be set.
    Submit(Request),
    /// Another task is at it. The [`Waker`](crate::Waker) is called when it is this one's turn, from whatever thread, perhaps before
    /// this is returned: then call [`Task::resumed`](crate::Task::resumed).
    Wait,
    /// Run [`Task::call`](crate::Task::call) on a thread that may wait, and call [`Task::completed`](crate::Task::completed) with what it says.
    Call,
    /// Cancel all tasks of [`Task::unit`](crate::Task::unit) that belong to one of [`Task::preempted`](crate::Task::preempted), and call [`Task::completed`](crate::Task::completed) when none of
    /// their requests is under way any more: from then on nothing of theirs reaches the disk.
    SettlePreempted,
    /// It is over: status, sense and the number of bytes are there.
    Finished,
}
