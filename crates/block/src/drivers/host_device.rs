//! Driver `host_device`: opens a block device, with the geometry that the kernel reports.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use crate::disk_file::DiskFile;
use crate::disk_file::open::{self, DriverFileKind, FileOptions};
use crate::drivers::file::MAX_DISCARD_BYTES;
use crate::error::NodeError;
use crate::node::{DiscardLimits, Geometry};

const KIND: DriverFileKind = DriverFileKind {
    name: "host_device",
    kind: FileType::BlockDevice,
};

/// Opens a block device, with the geometry that the kernel reports.
pub(crate) fn open(
    options: &FileOptions,
    read_only: bool,
    opened: Option<OwnedFd>,
) -> Result<(DiskFile, Geometry), NodeError> {
    let path = &options.path;
    let (fd, _) = open::reuse_fd_or_open(opened, options, &KIND, read_only)?;
    let io = |what| {
        move |error| NodeError::Io {
            path: path.clone(),
            what,
            error,
        }
    };
    let device = fd.as_fd();
    if !read_only && ioctl_int(device, BLKROGET).map_err(io("BLKROGET"))? != 0 {
        return Err(NodeError::ReadOnlyMedium { path: path.clone() });
    }
    let logical_block_size =
        rustix::fs::ioctl_blksszget(device).map_err(|error| io("BLKSSZGET")(error.into()))?;
    let size = device_end(device, logical_block_size).map_err(io("finding its size"))?;
    if size == 0 {
        return Err(NodeError::Empty { path: path.clone() });
    }
    let physical_block_size =
        rustix::fs::ioctl_blkpbszget(device).map_err(|error| io("BLKPBSZGET")(error.into()))?;
    let queue = QueueLimits::find_in_sysfs(device);
    let geometry = Geometry {
        size,
        logical_block_size,
        physical_block_size: physical_block_size.max(logical_block_size),
        min_io_size: queue.read_u32("minimum_io_size"),
        opt_io_size: queue.read_u32("optimal_io_size"),
        discard: DiscardLimits {
            granularity: queue
                .read_u32("discard_granularity")
                .max(logical_block_size),
            max_bytes: match queue.read_u64("discard_max_bytes") {
                0 => MAX_DISCARD_BYTES,
                max_bytes => max_bytes.min(MAX_DISCARD_BYTES),
            },
        },
    };
    let backing = open::lock_and_make_disk_file(options, fd, read_only, Some(logical_block_size))?;
    Ok((backing, geometry))
}

/// The size of a device. A partial last block cannot be read or written alone, so it does not count.
///
/// # Errors
/// The error of `lseek(2)`.
pub(crate) fn device_end(device: BorrowedFd<'_>, logical_block_size: u32) -> std::io::Result<u64> {
    let end = rustix::fs::seek(device, rustix::fs::SeekFrom::End(0))?;
    Ok(end - end % u64::from(logical_block_size))
}

/// `_IO(0x12, 94)`, see `linux/fs.h`: whether the device is read-only.
const BLKROGET: libc::Ioctl = 0x125e;

/// An ioctl that returns one int.
fn ioctl_int(device: BorrowedFd<'_>, request: libc::Ioctl) -> std::io::Result<i32> {
    let mut value: i32 = 0;
    // SAFETY: the request writes one int to where the pointer points.
    if unsafe { libc::ioctl(device.as_raw_fd(), request, &raw mut value) } == 0 {
        Ok(value)
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// The queue attributes of a device in sysfs; a partition has those of its disk.
struct QueueLimits(Option<PathBuf>);

impl QueueLimits {
    /// The queue attributes of an open device.
    fn find_in_sysfs(device: BorrowedFd<'_>) -> Self {
        let found = rustix::fs::fstat(device).ok().and_then(|stat| {
            let (major, minor) = (
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            );
            let device_link = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
            let folder = fs::canonicalize(device_link).ok()?;
            [folder.join("queue"), folder.parent()?.join("queue")]
                .into_iter()
                .find(|path| path.is_dir())
        });
        QueueLimits(found)
    }

    /// The value of an attribute; 0 if the kernel does not report it.
    fn read_u64(&self, attribute: &str) -> u64 {
        let text = self
            .0
            .as_ref()
            .and_then(|folder| fs::read_to_string(folder.join(attribute)).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn read_u32(&self, attribute: &str) -> u32 {
        u32::try_from(self.read_u64(attribute)).unwrap_or(0)
    }
}
