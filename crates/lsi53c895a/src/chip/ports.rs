//! Ports of the chip: guest memory, and the targets on its SCSI bus.

use std::ptr::NonNull;

/// The caller's name for a memory access that is answered later.
pub type DmaId = u64;

/// An access to memory that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Guest memory as the chip sees it over PCI. The chip's own windows are never asked for here.
pub trait Bus {
    /// Host memory behind `addr`, contiguous, at least 1 and at most `len` bytes; `None` if nothing is mapped there (or
    /// not for writing, if `write`). It stays valid until the task it was collected for has ended.
    fn map(&mut self, addr: u64, len: usize, write: bool) -> Option<(NonNull<u8>, usize)>;

    /// Reads mapped memory. False, and nothing read, if a part of it is not mapped.
    fn read(&mut self, addr: u64, data: &mut [u8]) -> bool;

    /// Writes mapped memory. False, and nothing written, if a part of it is not mapped.
    fn write(&mut self, addr: u64, data: &[u8]) -> bool;

    /// The aligned word at `addr`, if it is mapped and can be had as one. What else is asked for by [`Bus::read`].
    #[inline]
    fn read_word(&mut self, addr: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes)
            .then(|| u32::from_le_bytes(bytes))
    }

    /// The same for writing. False: nothing is written.
    #[inline]
    fn write_word(&mut self, addr: u64, word: u32) -> bool {
        self.write(addr, &word.to_le_bytes())
    }

    /// Asks for memory without a mapping. [`Chip::dma_done`](crate::chip::Chip::dma_done) brings it, never from
    /// inside of this call.
    fn dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, Fault>;

    /// Writes memory without a mapping; answered as a read is, with no data.
    fn dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, Fault>;

    /// Has something come of this run that is not to wait for its end? Asked now and then.
    fn ends_run(&self) -> bool {
        false
    }

    /// The interrupt pin has gone up, and the run goes on: the guest may hear of it meanwhile.
    /// [`Chip::irq_level`](crate::chip::Chip::irq_level) says so after the run as well.
    fn interrupt(&mut self) {}
}

/// A task of the chip's, named so that a late answer to a name that was used again is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Below [`MAX_TASKS`](crate::chip::MAX_TASKS): which of the chip's slots.
    pub index: u16,
    /// How often the slot was used before.
    pub generation: u32,
}

/// Which logical unit of which target. The initiator is always the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nexus {
    /// SCSI ID, 0 to 15.
    pub target: u8,
    /// Logical unit, 0 to 63.
    pub lun: u8,
}

/// How a task is to be ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// No tag: the unit's only task of this initiator.
    Untagged,
    /// SIMPLE QUEUE TAG.
    Simple,
    /// HEAD OF QUEUE TAG.
    Head,
    /// ORDERED QUEUE TAG.
    Ordered,
}

/// What a target does after it has the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No data: it is run at once, with an empty list.
    Status,
    /// This many bytes to the initiator.
    DataIn(u64),
    /// This many bytes from the initiator.
    DataOut(u64),
}

/// How far a task got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// [`Chip::finished`](crate::chip::Chip::finished) will say so.
    Later,
    /// Done, with this status byte.
    Finished(u8),
}

/// How far an abort got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Nothing touches its memory any more.
    Done,
    /// Its memory is still in use; [`Chip::finished`](crate::chip::Chip::finished) will say when no longer (with any status).
    Later,
}

/// Why a task ends in CHECK CONDITION before the target has seen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is one with this tag already: ABORTED COMMAND, OVERLAPPED COMMANDS ATTEMPTED (0B/4E/00).
    Overlapped,
    /// INITIATOR DETECTED ERROR MESSAGE RECEIVED (0B/48/00).
    InitiatorError,
    /// The initiator's buffers are in too many pieces: DATA PHASE ERROR (0B/4B/00).
    DataPhase,
}

/// What is reset. The tasks concerned were aborted before, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// All targets: SCSI bus reset, or the chip's own.
    Bus,
    /// BUS DEVICE RESET to this target.
    Target(u8),
    /// LOGICAL UNIT RESET.
    Unit(Nexus),
}

/// The targets on the SCSI bus. None of these calls may enter the chip.
///
/// The bus has no autosense: sense data of a task that ended in CHECK CONDITION is kept for its nexus until
/// REQUEST SENSE or the next command to that unit.
pub trait Targets {
    /// Does a target with this ID answer a selection?
    fn present(&mut self, target: u8) -> bool;

    /// A new task. `cdb` has the length that its operation code asks for.
    fn receive(&mut self, task: TaskId, nexus: Nexus, attribute: Attribute, cdb: &[u8]) -> Phase;

    /// A task instead of the one that was, or would have been, received: it is run next, and ends in CHECK CONDITION.
    fn refuse(&mut self, task: TaskId, nexus: Nexus, refusal: Refusal);

    /// All of its data is at hand: `segments` of host memory, `len` bytes in sum, the task's to use and change until it has ended.
    fn run(&mut self, task: TaskId, segments: &mut [libc::iovec], len: u64) -> Step;

    /// The task will not be asked about any more. It had not finished.
    fn abort(&mut self, task: TaskId) -> Abort;

    /// A task that had finished is over. `told`: the initiator has its status; else nobody wants it any more.
    fn ended(&mut self, task: TaskId, reported: bool);

    /// Targets or units go back to their power-on state.
    fn reset(&mut self, what: Reset);
}
