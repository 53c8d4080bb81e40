//! The configuration space (VIRTIO 1.3, section 5.6.4): its contents for the driver, and the driver's writes of the sizes of
//! sense data and CDBs.

use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

use crate::device::Device;
use crate::wire::{ConfigSpace, EVENT_LEN};

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = size_of::<ConfigSpace>();

/// Sizes that a driver may set. Sense data in fixed format needs 18 bytes, and a CDB of a disk 16; a variable-length CDB
/// has 260 at most, and no command has more than a page of sense data.
const SENSE_BYTES: std::ops::RangeInclusive<u32> = 18..=4096;
const CDB_BYTES: std::ops::RangeInclusive<u32> = 16..=260;

/// The largest transfer, in sectors: the value that comparable servers announce.
const MAX_SECTORS: u32 = 0xffff;

/// Commands in flight per unit: the value that comparable servers announce.
const COMMANDS_PER_UNIT: u32 = 128;

impl Device {
    /// The configuration space as the driver reads it.
    #[must_use]
    pub fn config_space(&self) -> [u8; CONFIG_BYTES] {
        let words = [
            self.options().request_queues.into(),
            self.max_segments(),
            MAX_SECTORS,
            COMMANDS_PER_UNIT.min(self.options().queue_size.into()),
            EVENT_LEN,
            self.sense_bytes.load(Ordering::Relaxed),
            self.cdb_bytes.load(Ordering::Relaxed),
            // One channel, and targets to 255.
            255 << 16,
            scsi::MAX_LUN.into(),
        ];
        let mut bytes = [0; CONFIG_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Applies a write of the driver to the configuration space. False for anything but supported sizes of sense data
    /// and CDBs.
    #[must_use]
    pub fn write_config(&self, offset: usize, bytes: &[u8]) -> bool {
        const SENSE: usize = offset_of!(ConfigSpace, sense_size);
        const CDB: usize = offset_of!(ConfigSpace, cdb_size);
        let Ok(bytes) = bytes.try_into() else {
            return false;
        };
        let value = u32::from_le_bytes(bytes);
        let (sizes, size) = match offset {
            SENSE => (SENSE_BYTES, &self.sense_bytes),
            CDB => (CDB_BYTES, &self.cdb_bytes),
            _ => return false,
        };
        let fits = sizes.contains(&value);
        if fits {
            size.store(value, Ordering::Relaxed);
        }
        fits
    }
}
