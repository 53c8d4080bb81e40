//! The check of a disk's address on the SCSI bus (target and LUN), and its errors.

use crate::adapter::INITIATOR;

/// Why a disk cannot have an address on the SCSI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskAddressError {
    /// The bus is 16 bits wide.
    #[error("target {0}: the SCSI bus has targets 0 to 15")]
    Target(u16),
    /// The chip's own ID.
    #[error("target {INITIATOR} is the host adapter itself: choose another from 0 to 15")]
    Initiator,
    /// IDENTIFY has 6 bits.
    #[error("LUN {0}: this bus has logical units 0 to 63")]
    Lun(u16),
    /// Another disk has the address.
    #[error("two disks are logical unit {lun} of target {target}")]
    Taken {
        /// SCSI ID.
        target: u8,
        /// Logical unit.
        lun: u8,
    },
}

impl DiskAddressError {
    /// Checks that a disk can have this address, and returns it in the width that the bus has.
    ///
    /// # Errors
    /// [`DiskAddressError`], except [`DiskAddressError::Taken`].
    pub fn checked_target_and_lun(target: u16, lun: u16) -> Result<(u8, u8), DiskAddressError> {
        let id = u8::try_from(target).ok().filter(|id| *id < 16);
        let id = id.ok_or(DiskAddressError::Target(target))?;
        if id == INITIATOR {
            return Err(DiskAddressError::Initiator);
        }
        let unit = u8::try_from(lun).ok().filter(|lun| *lun < 64);
        Ok((id, unit.ok_or(DiskAddressError::Lun(lun))?))
    }
}
