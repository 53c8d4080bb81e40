//! Identity and reservations of a SCSI disk: options that each disk of a controller has for itself.

use std::path::PathBuf;

use super::is_block_size;
use crate::{
    form::{FilePathForm, LabelForm, number_form, size_form},
    limits,
    settings::settings,
};

/// Most bytes of a SCSI disk's serial number: a designator of 255 bytes (SPC-4, section 7.8.6) without the vendor.
pub const MAX_SCSI_SERIAL_BYTES: usize = 247;

/// Most bytes of a vendor specific designator.
const MAX_DEVICE_ID_BYTES: usize = 255;

settings! {
    /// Options that each SCSI disk has for itself. A name that is `None` is generated.
    pub struct LunDeviceOptions {
        /// a power of two, 512 to 32768 (default 512)
        pub logical_block_size: u32 = "logical-block-size",
            size_form(0, u32::MAX)
                .with_placeholder("BYTES")
                .with_check(is_block_size, limits::BLOCK_SIZE_EXPECTED), default(512);
        /// serial number of a SCSI disk, at most 247 bytes (blockplane's own, as all that follow)
        pub serial: Option<String> = "serial", LabelForm { longest: MAX_SCSI_SERIAL_BYTES }, optional;
        /// a SCSI disk's vendor, at most 8 bytes (default BLKPLANE)
        pub vendor: Option<String> = "vendor", LabelForm { longest: 8 }, optional;
        /// a SCSI disk's product, at most 16 bytes (default DISK)
        pub product: Option<String> = "product", LabelForm { longest: 16 }, optional;
        /// a SCSI disk's revision, at most 4 bytes (default 1)
        pub version: Option<String> = "ver", LabelForm { longest: 4 }, optional;
        /// a SCSI disk's world wide name, 64 bits that begin with 2, 3 or 5
        /// (default: derived from its serial number, or from its target and LUN)
        pub wwn: Option<u64> = "wwn",
            number_form(0, u64::MAX).with_check(
                is_wwn,
                "a name of 64 bits whose first hexadecimal digit is 2, 3 (locally assigned) or 5, such as 0x3000000000000001",
            ), optional;
        /// a SCSI disk's name in VPD page 83h instead of the default ones, as device_id of QEMU's scsi-hd
        pub device_id: Option<String> = "device-id", LabelForm { longest: MAX_DEVICE_ID_BYTES }, optional;
        /// a SCSI disk's rounds per minute, from 1025 to 65534; 1 = it does not rotate, 0 = not reported (default 1)
        pub rotation_rate: u16 = "rotation-rate",
            number_form(0, 65534).with_check(
                is_rotation_rate,
                "rounds per minute from 1025 to 65534, 1 for a disk that does not rotate, or 0",
            ), default(1);
        /// file for a SCSI disk's persistent reservations across restarts (APTPL), created if it does not exist
        pub pr_file: Option<PathBuf> = "pr-file", FilePathForm, optional;
    }
}

impl Default for LunDeviceOptions {
    fn default() -> Self {
        Self::defaults()
    }
}

/// NAA 2, 3 and 5 are names of 64 bits (SPC-4, section 7.8.6.6).
fn is_wwn(number: u64) -> bool {
    matches!(number >> 60, 2 | 3 | 5)
}

/// Other values are reserved (SBC-3, medium rotation rate).
fn is_rotation_rate(rate: u64) -> bool {
    matches!(rate, 0 | 1 | 1025..)
}
