//! Driver `file`: a raw image.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::SECTOR_BYTES;
use crate::alignment::{Alignment, kind_of};
use crate::error::NodeError;
use crate::lock::{self, Locking};
use crate::node::{BlockMode, DiscardLimits, FdBacking, Geometry};
use crate::range_lock::RangeLock;

/// How a file or block device is opened.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Where it is.
    pub path: PathBuf,
    /// Around the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Flushes are left out.
    pub no_flush: bool,
    /// Discards are passed on.
    pub unmap: bool,
    /// Linux AIO rather than threads, where direct I/O makes it asynchronous.
    pub native_aio: bool,
    /// Submit as soon as so many requests wait (`aio-max-batch` of the node); 0: as the iothread says.
    pub aio_max_batch: u32,
    /// Image locking.
    pub locking: Locking,
}

/// Fallback for the preferred block of a file system that does not say.
const USUAL_BLOCK: u32 = 4096;

/// Largest discard that one request may be: the most sectors that virtio can say in 32 bits would
/// be 2 TiB; a worker should come back earlier than after that, and every request fits 1 GiB well.
pub(crate) const MAX_DISCARD_BYTES: u64 = 1 << 30;

pub(crate) fn open(
    options: &FileOptions,
    read_only: bool,
) -> Result<(FdBacking, Geometry), NodeError> {
    let path = &options.path;
    let fd = open_fd(path, options.direct, read_only)?;
    let io = |what| {
        move |error| NodeError::Io {
            path: path.clone(),
            what,
            error,
        }
    };
    match kind_of(fd.as_fd()).map_err(io("fstat"))? {
        (FileType::RegularFile, _) => {}
        (_, found) => {
            let (driver, wanted) = ("file", "a regular file");
            return Err(NodeError::WrongKind {
                path: path.clone(),
                driver,
                wanted,
                found,
            });
        }
    }
    let stat = rustix::fs::fstat(&fd).map_err(|error| io("fstat")(error.into()))?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if bytes == 0 {
        return Err(NodeError::Empty { path: path.clone() });
    }
    let backing = finish(options, fd, read_only, false)?;
    let logical_block_size = backing.direct.map_or(512, |direct| direct.offset);
    let preferred = u32::try_from(stat.st_blksize)
        .ok()
        .filter(|size| size.is_power_of_two());
    let preferred = preferred.unwrap_or(USUAL_BLOCK).max(logical_block_size);
    let geometry = Geometry {
        // A last sector that is not whole reads as padded with zeroes and becomes whole when written.
        size: bytes.next_multiple_of(SECTOR_BYTES),
        logical_block_size,
        physical_block_size: preferred.min(USUAL_BLOCK).max(logical_block_size),
        min_io_size: 0,
        opt_io_size: 0,
        discard: DiscardLimits {
            granularity: preferred,
            max_bytes: MAX_DISCARD_BYTES,
        },
    };
    Ok((backing, geometry))
}

pub(crate) fn open_fd(path: &Path, direct: bool, read_only: bool) -> Result<OwnedFd, NodeError> {
    let access = if read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    // Non-blocking, so that opening a pipe by mistake does not hang; no matter for disks.
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECT, direct);
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::INVAL if direct => NodeError::NoDirectIo {
            path: path.to_owned(),
        },
        Errno::NOENT => NodeError::NoSuchDisk {
            path: path.to_owned(),
        },
        error => NodeError::Open {
            path: path.to_owned(),
            error: error.into(),
        },
    })
}

/// What is the same for files and devices once they are open.
pub(crate) fn finish(
    options: &FileOptions,
    fd: OwnedFd,
    read_only: bool,
    is_device: bool,
) -> Result<FdBacking, NodeError> {
    let path = &options.path;
    lock::acquire(fd.as_fd(), path, options.locking, read_only)?;
    let direct = if options.direct {
        let found = Alignment::of(fd.as_fd()).map_err(|error| NodeError::Io {
            path: path.clone(),
            what: "statx",
            error,
        })?;
        Some(found.ok_or_else(|| NodeError::NoDirectIo { path: path.clone() })?)
    } else {
        None
    };
    Ok(FdBacking {
        fd,
        // Through the page cache Linux AIO is synchronous: it would block the loop.
        native_aio: options.native_aio && direct.is_some(),
        aio_max_batch: options.aio_max_batch,
        direct,
        is_device,
        no_flush: options.no_flush,
        block_mode: BlockMode::default(),
        ranges: RangeLock::default(),
    })
}
