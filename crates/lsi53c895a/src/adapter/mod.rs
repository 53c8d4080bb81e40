//! An LSI53C895A in a guest's PCI slot, with SCSI disks behind it.
//!
//! Three crates that know nothing of each other meet here: the chip ([`lsi53c895a`]), the disks ([`scsi`]) and
//! the transport ([`vfio_user`]). Like them, an [`Adapter`] makes no system call and never blocks:
//!
//! - The transport calls it for what the guest does to registers; programs run in its turn
//!   ([`vfio_user::PciDevice::run`]), bounded, so that it shares an iothread with others.
//! - Block requests wait in it until [`Adapter::submit`] hands them to the engines, as many as these have room for;
//!   [`Adapter::completed`] brings their results.
//! - Guest memory is used in place. What a request uses stays mapped until it is done: the front-end hears of
//!   its DMA_UNMAP then, while registers are answered.
//!
//! ```text
//!   registers, memory, interrupt                    requests
//!  front-end <-> vfio_user::Server <-> Adapter <-> engines
//!                                       |  |
//!                              the chip +  + disks: order, tasks, sense data
//! ```

mod bus;
mod device;
mod disks;
mod error;
mod memory;
mod pci;
mod pending_sense;
mod resumed_tasks;
mod slot;

pub use device::Adapter;
pub use error::DiskError;

use std::sync::Arc;

/// The initiator's own SCSI ID, which no target has.
pub const INITIATOR: u8 = 7;

/// A disk, and where it is on the SCSI bus.
#[derive(Clone)]
pub struct Disk {
    /// SCSI ID: 0 to 15, but not [`INITIATOR`].
    pub target: u8,
    /// Logical unit: 0 to 63.
    pub lun: u8,
    /// What initiators see of it. Nobody else has it.
    pub unit: Arc<scsi::Unit>,
}
