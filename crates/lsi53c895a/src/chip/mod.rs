//! The LSI53C895A, a PCI to Ultra2 SCSI host adapter, as a pure state machine.
//!
//! A guest drives it as its manual says: it writes registers, and leaves programs for the chip's own
//! processor (SCRIPTS) in memory, which select targets, send messages and commands and move data. The
//! [`Chip`] carries them out. It makes no system call, reads no clock, knows no file and no thread: guest
//! memory is behind [`PciBus`], disks are behind [`Targets`], and the caller says when to [`run`](Chip::run)
//! and for how long.
//!
//! **Data moves once.** The targets on this SCSI bus enter the data phase right after the command, and a block
//! move of data only collects the addresses of guest memory. When the command's data is complete the target
//! disconnects, and the whole request goes to the disk with the guest's own memory; when it is done, the
//! target reselects and goes straight to the status. No guest can tell: what is in its buffers before
//! GOOD status means nothing. `docs/lsi53c895a.md` says what drivers make of it.
//!
//! **Nothing calls back.** Writing a register only takes note; programs run in [`Chip::run`]. What the chip reads
//! from or writes to its own registers is served inside, by the same two functions, and starts no program
//! in the middle of another. Resets and aborts are carried out between instructions. An aborted task keeps
//! its memory until the disk has let go of it, and the SCSI bus stands still until then.
//!
//! PCI configuration space, the wiring of INTx and the order of replies on a socket are decided above.

mod command_phase;
mod core;
mod host_traits;
mod interrupts;
mod memory_access;
mod messages;
mod register_access;
mod register_effects;
mod registers;
mod reset;
mod scripts;
mod scsi_bus;
mod task_data;
mod tasks;
mod timer;

pub use core::{Bar, BarAddresses, Chip, RunOutcome, RunParameters};
pub use host_traits::{
    AbortOutcome, BusFault, CheckConditionCause, DmaId, PciBus, PhaseAfterCommand, ResetScope,
    TagAttribute, TargetAndLun, Targets, TaskSlotId, TaskStartOutcome,
};
pub use tasks::{MAX_SEGMENTS, MAX_TASKS};
