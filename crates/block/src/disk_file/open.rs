//! Opening what the drivers `file` and `host_device` share: the path, its kind, its lock, and what
//! direct I/O wants there.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::aio::Aio;
use crate::disk_file::alignment::Alignment;
use crate::disk_file::backing_id::BackingId;
use crate::disk_file::lock::{LockedFd, Locking};
use crate::disk_file::unsupported_ops::UnsupportedOps;
use crate::disk_file::{BlockMode, DiskFile};
use crate::error::NodeError;
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
    /// How requests reach the kernel. Without direct I/O, Linux AIO means threads.
    pub aio: Aio,
    /// Submit as soon as so many requests wait (`aio-max-batch` of the node); 0: as the iothread says.
    pub aio_max_batch: u32,
    /// Image locking.
    pub locking: Locking,
}

/// A driver, for what it opens.
pub(crate) struct FileKind {
    pub name: &'static str,
    pub kind: FileType,
}

/// What somebody else has opened, or else what [`open_fd`] opens.
///
/// # Errors
/// [`NodeError`]: it is something else, or the path cannot be opened.
pub(crate) fn reuse_or_open(
    opened: Option<OwnedFd>,
    options: &FileOptions,
    driver: &FileKind,
    read_only: bool,
) -> Result<(OwnedFd, Stat), NodeError> {
    let Some(fd) = opened else {
        return open_fd(options, driver, read_only);
    };
    let stat = rustix::fs::fstat(&fd).map_err(|error| NodeError::Io {
        path: options.path.clone(),
        what: "fstat",
        error: error.into(),
    })?;
    check_kind(&options.path, driver, &stat)?;
    Ok((fd, stat))
}

/// Opens the path and says what it is. Nothing is opened that is not of the driver's kind: a pipe
/// would hang, and opening a tape moves it.
///
/// # Errors
/// [`NodeError`]: it is not there, is something else, may not be opened or has no direct I/O.
pub(crate) fn open_fd(
    options: &FileOptions,
    driver: &FileKind,
    read_only: bool,
) -> Result<(OwnedFd, Stat), NodeError> {
    let path = &options.path;
    let failed = |error: Errno| NodeError::Open {
        path: path.clone(),
        error: error.into(),
    };
    let found = rustix::fs::stat(path).map_err(|error| match error {
        Errno::NOENT if driver.kind == FileType::RegularFile => {
            NodeError::NoSuchDisk { path: path.clone() }
        }
        error => failed(error),
    })?;
    check_kind(path, driver, &found)?;

    let access = if read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    // Non-blocking, should a pipe have taken its place just now; no matter for disks.
    let mut flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECT, options.direct);
    let open = || rustix::fs::open(path, flags, Mode::empty());
    let fd = rustix::io::retry_on_intr(open).map_err(|error| match error {
        Errno::INVAL if options.direct => NodeError::NoDirectIo { path: path.clone() },
        error => failed(error),
    })?;
    let opened = rustix::fs::fstat(&fd).map_err(|error| NodeError::Io {
        path: path.clone(),
        what: "fstat",
        error: error.into(),
    })?;
    check_kind(path, driver, &opened)?;
    // A ring would take it as a wish not to wait for the disk.
    rustix::fs::fcntl_setfl(&fd, flags & !OFlags::NONBLOCK).map_err(|error| NodeError::Io {
        path: path.clone(),
        what: "fcntl",
        error: error.into(),
    })?;
    Ok((fd, opened))
}

/// Locks what was opened and makes a backing of it. `device_block`: the block of a block device, in
/// bytes; `None` for a file.
///
/// # Errors
/// [`NodeError::Locked`], [`NodeError::NoDirectIo`], or what the kernel says.
pub(crate) fn finish_opening(
    options: &FileOptions,
    fd: OwnedFd,
    read_only: bool,
    device_block: Option<u32>,
) -> Result<DiskFile, NodeError> {
    let path = &options.path;
    let fd = LockedFd::acquire(fd, path, options.locking, read_only)?;
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
    Ok(DiskFile {
        fd,
        id: BackingId::new(),
        // Through the page cache Linux AIO is synchronous: it would block the loop.
        aio: match options.aio {
            Aio::Native if direct.is_none() => Aio::Threads,
            aio => aio,
        },
        unsupported: UnsupportedOps::default(),
        aio_max_batch: options.aio_max_batch,
        direct,
        device_block,
        no_flush: options.no_flush,
        block_mode: BlockMode::default(),
        ranges: RangeLock::default(),
        #[cfg(feature = "simulation")]
        simulated: None,
    })
}

fn check_kind(path: &Path, driver: &FileKind, stat: &Stat) -> Result<(), NodeError> {
    let found = FileType::from_raw_mode(stat.st_mode);
    if found == driver.kind {
        return Ok(());
    }
    Err(NodeError::WrongKind {
        path: path.to_owned(),
        driver: driver.name,
        wanted: name_of(driver.kind),
        found: name_of(found),
    })
}

fn name_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::BlockDevice => "a block device",
        FileType::CharacterDevice => "a character device",
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    }
}
