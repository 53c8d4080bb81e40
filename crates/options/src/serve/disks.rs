//! Parsing of the DISK arguments of `serve`, and checks of the serial numbers given for them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ServeDisk;

/// Parses DISK.
pub(super) fn parse_disk(word: &OsString) -> Result<ServeDisk, String> {
    match word.as_bytes() {
        b"null-co:" | b"null-co://" => Ok(ServeDisk::NullCo),
        b"" => Err("DISK is empty: expected a path or null-co:".to_owned()),
        bytes if bytes.starts_with(b"null-co:") => Err(format!(
            "DISK '{}': nothing may follow null-co: (for its size there is --size; for a file of that name write ./{0})",
            word.display()
        )),
        bytes if bytes.ends_with(b"/") => Err(format!(
            "DISK '{}' is a directory: expected a file",
            word.display()
        )),
        _ => Ok(ServeDisk::Path(Path::new(word).to_owned())),
    }
}

/// Checks that each disk has a serial number of its own, or that none is given.
pub(super) fn check_serial_count_and_uniqueness(
    serials: &[String],
    disk_count: usize,
) -> Result<(), String> {
    if !serials.is_empty() && serials.len() != disk_count {
        return Err(format!(
            "--serial is given {} times for {disk_count} disks; give it once for each, in their order, or not at all",
            serials.len()
        ));
    }
    for (i, serial) in serials.iter().enumerate() {
        if serials[..i].contains(serial) {
            return Err(format!(
                "--serial '{serial}' is given twice: a guest could not distinguish these disks; give each its own"
            ));
        }
    }
    Ok(())
}
