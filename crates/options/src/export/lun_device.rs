//! What a SCSI disk says that it is, and what it keeps: as far as it is not the same for other disks.

use std::path::PathBuf;

use crate::{
    Problem,
    fields::{Fields, Key},
    limits,
};

/// Most bytes of a SCSI disk's serial number: what a designator of 255 bytes (SPC-4, section 7.8.6) has beside the vendor.
pub const MAX_SCSI_SERIAL_BYTES: usize = 247;

/// Most bytes of a designator of the vendor's own.
const MAX_DEVICE_ID_BYTES: usize = 255;

/// Its keys, each disk's own.
pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "vendor",
        value: "TEXT",
        help: "a SCSI disk's vendor, at most 8 bytes (default BLKPLANE; blockplane's own, as all that follow)",
    },
    Key {
        name: "product",
        value: "TEXT",
        help: "a SCSI disk's product, at most 16 bytes (default DISK)",
    },
    Key {
        name: "ver",
        value: "TEXT",
        help: "a SCSI disk's revision, at most 4 bytes (default 1)",
    },
    Key {
        name: "wwn",
        value: "N",
        help: "a SCSI disk's world wide name, 64 bits that begin with 2, 3 or 5 (default: made of its serial number, or of its place)",
    },
    Key {
        name: "device-id",
        value: "TEXT",
        help: "a SCSI disk's name in page 83h instead of those made of its serial number and place, as of QEMU's scsi-hd (device_id)",
    },
    Key {
        name: "rotation-rate",
        value: "N",
        help: "a SCSI disk's rounds per minute, from 1025 to 65534; 1 does not rotate, 0 does not say (default 1)",
    },
    Key {
        name: "pr-file",
        value: "PATH",
        help: "file that keeps a SCSI disk's persistent reservations across restarts (APTPL); made if it is not there",
    },
];

/// What a SCSI disk says that it is, and what it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunDevice {
    /// `vendor`: printable ASCII without blanks at the ends, 1 to 8 bytes. `None` = the disk's own choice.
    pub vendor: Option<String>,
    /// `product`: the same, to 16 bytes.
    pub product: Option<String>,
    /// `ver`: the same, to 4 bytes.
    pub version: Option<String>,
    /// `wwn`: NAA 2, 3 or 5. `None` = made of other names.
    pub wwn: Option<u64>,
    /// `device-id`: instead of names that are made of others.
    pub device_id: Option<String>,
    /// `rotation-rate`: as in the disk's characteristics page. Default 1.
    pub rotation_rate: u16,
    /// `pr-file`: what keeps persistent reservations. `None` = nothing.
    pub pr_file: Option<PathBuf>,
}

impl Default for LunDevice {
    fn default() -> Self {
        LunDevice {
            vendor: None,
            product: None,
            version: None,
            wwn: None,
            device_id: None,
            rotation_rate: 1,
            pr_file: None,
        }
    }
}

/// Takes the serial number.
pub(super) fn serial(fields: &mut Fields) -> Result<Option<String>, Problem> {
    name(fields, "serial", MAX_SCSI_SERIAL_BYTES)
}

/// Takes all others.
pub(super) fn device(fields: &mut Fields) -> Result<LunDevice, Problem> {
    Ok(LunDevice {
        vendor: name(fields, "vendor", 8)?,
        product: name(fields, "product", 16)?,
        version: name(fields, "ver", 4)?,
        wwn: wwn(fields)?,
        device_id: name(fields, "device-id", MAX_DEVICE_ID_BYTES)?,
        rotation_rate: rotation_rate(fields)?,
        pr_file: pr_file(fields)?,
    })
}

fn name(fields: &mut Fields, key: &'static str, longest: usize) -> Result<Option<String>, Problem> {
    let Some(name) = fields.string(key)? else {
        return Ok(None);
    };
    if limits::is_name(&name, longest) {
        return Ok(Some(name));
    }
    let expected = limits::name_expected(longest);
    Err(fields.bad_text(key, &name, &expected))
}

fn wwn(fields: &mut Fields) -> Result<Option<u64>, Problem> {
    let wwn = fields.number("wwn", 0, u64::MAX)?;
    match wwn {
        Some(wwn) if !matches!(wwn >> 60, 2 | 3 | 5) => Err(fields.bad_text(
            "wwn",
            &format!("{wwn:#x}"),
            "a name of 64 bits whose first hexadecimal digit is 2, 3 (locally assigned) or 5, such as 0x3000000000000001",
        )),
        wwn => Ok(wwn),
    }
}

fn rotation_rate(fields: &mut Fields) -> Result<u16, Problem> {
    let rate = fields.number("rotation-rate", 0, 0xfffe)?.unwrap_or(1);
    match u16::try_from(rate) {
        // What lies between is reserved.
        Ok(rate @ (0 | 1 | 1025..)) => Ok(rate),
        _ => Err(fields.bad_text(
            "rotation-rate",
            &rate.to_string(),
            "rounds per minute from 1025 to 65534, 1 for a disk that does not rotate, or 0",
        )),
    }
}

fn pr_file(fields: &mut Fields) -> Result<Option<PathBuf>, Problem> {
    match fields.string("pr-file")? {
        Some(path) if path.is_empty() || path.contains('\0') => {
            Err(fields.bad_text("pr-file", &path, "the path of a file"))
        }
        path => Ok(path.map(PathBuf::from)),
    }
}
