//! Interfaces that the chip uses and its owner implements: guest memory over PCI, and the targets on its SCSI bus.

use std::ptr::NonNull;

/// The caller's number of a memory access that finishes later.
pub type DmaId = u64;

/// Error of an access to memory that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusFault;

/// Guest memory, which the chip accesses over PCI. The chip handles accesses to its own windows itself.
pub trait PciBus {
    /// Host memory behind `addr`, contiguous, at least 1 and at most `len` bytes; `None` if nothing is mapped there (or
    /// not for writing, if `write`). It stays valid until the task it was collected for has ended.
    fn first_contiguous_part(
        &mut self,
        addr: u64,
        len: usize,
        write: bool,
    ) -> Option<(NonNull<u8>, usize)>;

    /// Reads mapped memory. False, and nothing read, if a part of it is not mapped.
    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool;

    /// Writes mapped memory. False, and nothing written, if a part of it is not mapped.
    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool;

    /// The aligned word at `addr`, if it is mapped and can be read as one. Otherwise [`PciBus::read_if_mapped`] is called.
    #[inline]
    fn read_word_if_mapped(&mut self, addr: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read_if_mapped(addr, &mut bytes)
            .then(|| u32::from_le_bytes(bytes))
    }

    /// Writes the aligned word at `addr`. False: nothing is written.
    #[inline]
    fn write_word_if_mapped(&mut self, addr: u64, word: u32) -> bool {
        self.write_if_mapped(addr, &word.to_le_bytes())
    }

    /// Reads memory without a mapping. [`Chip::on_dma_done`](crate::chip::Chip::on_dma_done) gets the data, never from
    /// inside of this call.
    fn start_dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, BusFault>;

    /// Writes memory without a mapping; [`Chip::on_dma_done`](crate::chip::Chip::on_dma_done) is called without data.
    fn start_dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, BusFault>;

    /// Whether the run should end early. The chip calls it from time to time.
    fn should_end_run_to_submit(&self) -> bool {
        false
    }

    /// The interrupt pin was asserted, and the run goes on: the guest may be notified meanwhile.
    /// [`Chip::irq_level`](crate::chip::Chip::irq_level) returns the level after the run as well.
    fn on_interrupt_asserted(&mut self) {}
}

/// A task of the chip's. The generation distinguishes it from earlier tasks of the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskSlotId {
    /// The chip's slot, below [`MAX_TASKS`](crate::chip::MAX_TASKS).
    pub index: u16,
    /// How often the slot was used before.
    pub generation: u32,
}

/// A logical unit of a target. The initiator is always the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetAndLun {
    /// SCSI ID, 0 to 15.
    pub target: u8,
    /// Logical unit, 0 to 63.
    pub lun: u8,
}

/// The task attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagAttribute {
    /// No tag: the unit's only task of this initiator.
    Untagged,
    /// SIMPLE QUEUE TAG.
    Simple,
    /// HEAD OF QUEUE TAG.
    Head,
    /// ORDERED QUEUE TAG.
    Ordered,
}

/// The phase after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseAfterCommand {
    /// No data: it is run at once, with an empty list.
    Status,
    /// This many bytes to the initiator.
    DataIn(u64),
    /// This many bytes from the initiator.
    DataOut(u64),
}

/// The result of running a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStartOutcome {
    /// [`Chip::on_task_finished_or_drained`](crate::chip::Chip::on_task_finished_or_drained) will be called.
    Later,
    /// Done, with this status byte.
    Finished(u8),
}

/// The result of aborting a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortOutcome {
    /// Its memory is no longer in use.
    Done,
    /// Its memory is still in use;
    /// [`Chip::on_task_finished_or_drained`](crate::chip::Chip::on_task_finished_or_drained) will be called when it is
    /// not (with any status).
    Later,
}

/// Why a task ends in CHECK CONDITION before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckConditionCause {
    /// Another task has the same tag: ABORTED COMMAND, OVERLAPPED COMMANDS ATTEMPTED (0B/4E/00).
    Overlapped,
    /// INITIATOR DETECTED ERROR MESSAGE RECEIVED (0B/48/00).
    InitiatorError,
    /// The initiator's buffers are in too many pieces: DATA PHASE ERROR (0B/4B/00).
    DataPhase,
}

/// The scope of a reset. The tasks concerned were aborted before, one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetScope {
    /// All targets: SCSI bus reset, or the chip's own.
    Bus,
    /// BUS DEVICE RESET to this target.
    Target(u8),
    /// LOGICAL UNIT RESET.
    Unit(TargetAndLun),
}

/// The targets on the SCSI bus. None of these calls may enter the chip.
///
/// The bus has no autosense: sense data of a task that ended in CHECK CONDITION must be stored for its nexus until
/// REQUEST SENSE or the next command to that unit.
pub trait Targets {
    /// Whether a target with this ID exists.
    fn has_target(&mut self, target: u8) -> bool;

    /// Receives a new task. `cdb` has the length that its operation code requires.
    fn receive_command(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand;

    /// Replaces the task that was, or would have been, received by one that ends in CHECK CONDITION. It is run next.
    fn replace_by_failing_task(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        refusal: CheckConditionCause,
    );

    /// Runs a task with its data: `segments` of host memory, `len` bytes in sum, which it may use and change until it
    /// has ended.
    fn run_or_queue_task(
        &mut self,
        task: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome;

    /// Aborts a task that has not finished.
    fn abort_task(&mut self, task: TaskSlotId) -> AbortOutcome;

    /// Releases a task that had finished. `reported`: the initiator has its status; otherwise it was aborted.
    fn release_finished_task(&mut self, task: TaskSlotId, reported: bool);

    /// Resets targets or units to their power-on state.
    fn reset_units(&mut self, scope: ResetScope);
}
