//! A guest with an LSI53C895A in a PCI slot, as light as it can be: what its monitor does over vfio-user, and what the driver of
//! an operating system does with the chip.
//!
//! [`Slot`] is the socket: registers, interrupts, memory that is shared. [`ChipQueue`] is the queue that the driver's SCRIPTS
//! read commands from, and the one that they put completed ones into. [`ControlBlocks`] are the commands. The SCRIPTS themselves
//! are `lsi-driver`'s.
//!
//! It does what Linux' `sym53c8xx` does per command: a control block, an entry in the start queue, SIGP, which is one posted
//! write of a register. It polls: it has no interrupt.

mod blocks;
mod queue;
mod slot;

pub(crate) use blocks::{Bus, ControlBlocks};
pub(crate) use queue::ChipQueue;
pub(crate) use slot::Slot;
