//! An LSI53C895A in a guest's PCI slot, with SCSI disks behind it.
//!
//! It connects three independent parts: the chip ([`chip`](crate::chip)), the disks ([`scsi`]) and
//! the transport ([`vfio_user`]). Like them, an [`Adapter`] makes no system call and never blocks:
//!
//! - The transport calls it for the guest's register accesses; SCRIPTS programs run in its turn
//!   ([`vfio_user::PciDevice::do_pending_work`]), for a bounded time, so that it can share an iothread.
//! - Block requests wait in it until [`Adapter::submit_queued_requests`] submits as many to the backends as these have room for;
//!   [`Adapter::complete_request`] gets their results.
//! - Guest memory is used in place. Memory stays mapped until the requests that use it are done: the reply to DMA_UNMAP waits
//!   for them, while register accesses are answered.
//!
//! ```text
//!   registers, memory, interrupt                    requests
//!  front-end <-> vfio_user::Server <-> Adapter <-> engines
//!                                       |  |
//!                              the chip +  + disks: order, tasks, sense data
//! ```

mod chip_host;
mod device;
mod disk_address;
mod disks;
mod memory_generations;
mod pci;
mod resumed_tasks;
mod sense_report_queue;
mod slot;

pub use device::Adapter;
pub use disk_address::DiskAddressError;

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
    /// Its logical unit, which no other adapter may have.
    pub unit: Arc<scsi::Unit>,
}
