//! Driver `file`: opens a raw image in a regular file, with the geometry that its file system reports.

use std::os::fd::OwnedFd;

use crate::SECTOR_BYTES;
use crate::disk_file::DiskFile;
use crate::disk_file::open::{self, DriverFileKind, FileOptions};
use crate::error::NodeError;
use crate::node::{DiscardLimits, Geometry};

/// Preferred block of a file system that does not report one.
const DEFAULT_BLOCK: u32 = 4096;

/// Largest discard or write-zeroes of one request. virtio allows 2 TiB (32 bits of sectors), which would occupy a worker for
/// too long.
pub(crate) const MAX_DISCARD_BYTES: u64 = 1 << 30;

/// Size of a disk in a file that ends at `end`. A partial last sector reads as padded with zeroes, and becomes whole when written.
pub(crate) fn disk_size_for_end(end: u64) -> u64 {
    end.next_multiple_of(SECTOR_BYTES)
}

/// Opens a file, with the geometry that its file system reports.
pub(crate) fn open(
    options: &FileOptions,
    read_only: bool,
    opened: Option<OwnedFd>,
) -> Result<(DiskFile, Geometry), NodeError> {
    let path = &options.path;
    let (fd, stat) = open::reuse_fd_or_open(opened, options, &DriverFileKind::FILE, read_only)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if bytes == 0 {
        return Err(NodeError::Empty { path: path.clone() });
    }
    let backing = open::lock_and_make_disk_file(options, fd, read_only, None)?;
    let logical_block_size = backing.direct.map_or(512, |direct| direct.offset);
    let preferred = u32::try_from(stat.st_blksize)
        .ok()
        .filter(|size| size.is_power_of_two());
    let preferred = preferred.unwrap_or(DEFAULT_BLOCK).max(logical_block_size);
    let geometry = Geometry {
        size: disk_size_for_end(bytes),
        logical_block_size,
        physical_block_size: preferred.min(DEFAULT_BLOCK).max(logical_block_size),
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: preferred,
            max_bytes: MAX_DISCARD_BYTES,
        },
    };
    Ok((backing, geometry))
}
