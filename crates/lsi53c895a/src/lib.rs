//! The LSI53C895A, a PCI to Ultra2 SCSI host adapter.
//!
//! - [`chip`]: the chip as a pure state machine, which knows no disk and no transport;
//! - [`adapter`]: the chip in a guest's PCI slot (vfio-user), with SCSI disks behind it.

pub mod adapter;
pub mod chip;
