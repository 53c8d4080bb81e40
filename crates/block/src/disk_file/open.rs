//! Opening of files and block devices: the path, the kind of file, its locks, and the alignment of direct I/O.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::aio::Aio;
use crate::disk_file::DiskFile;
use crate::disk_file::alignment::Alignment;
use crate::disk_file::lock::{ImageAccess, LockedFd, Locking};
use crate::disk_file::open_file_id::OpenFileId;
use crate::disk_file::ops_refused_by_ring::OpsRefusedByRing;
use crate::disk_file::partial_blocks::PartialBlockMode;
use crate::error::NodeError;

/// Options for opening a file or block device.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Its path.
    pub path: PathBuf,
    /// Whether I/O bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether flushes are omitted.
    pub no_flush: bool,
    /// Whether discards reach the disk.
    pub unmap: bool,
    /// How requests reach the kernel. Without direct I/O, Linux AIO means worker threads.
    pub aio: Aio,
    /// Requests are submitted as soon as so many wait (`aio-max-batch` of the node); 0: the iothread's limit.
    pub aio_max_batch: u32,
    /// Image locking.
    pub locking: Locking,
    /// Others may write the image meanwhile; for reading only.
    pub force_share: bool,
}

/// The kind of file that a driver opens.
pub(crate) struct DriverFileKind {
    pub name: &'static str,
    pub kind: FileType,
}

impl DriverFileKind {
    /// The kind of driver `file`.
    pub const FILE: Self = DriverFileKind {
        name: "file",
        kind: FileType::RegularFile,
    };
}

/// Uses a descriptor that another process has opened, or opens the path.
///
/// # Errors
/// [`NodeError`]: the descriptor is of another kind, or the path cannot be opened.
pub(crate) fn reuse_fd_or_open(
    opened: Option<OwnedFd>,
    options: &FileOptions,
    driver: &DriverFileKind,
    read_only: bool,
) -> Result<(OwnedFd, Stat), NodeError> {
    let Some(fd) = opened else {
        return open_path(options, driver, read_only);
    };
    let stat = rustix::fs::fstat(&fd).map_err(|error| NodeError::Io {
        path: options.path.clone(),
        what: "fstat",
        error: error.into(),
    })?;
    check_kind(&options.path, driver, &stat)?;
    Ok((fd, stat))
}

/// Opens the path. Files of other kinds than the driver's are not opened: a pipe would hang, and opening a tape moves it.
///
/// # Errors
/// [`NodeError`]: it does not exist, is of another kind, may not be opened or has no direct I/O.
pub(crate) fn open_path(
    options: &FileOptions,
    driver: &DriverFileKind,
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
    // Non-blocking, in case a pipe has just taken its place; disks ignore it.
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
    // A ring would take the flag as a request not to wait for the disk.
    rustix::fs::fcntl_setfl(&fd, flags & !OFlags::NONBLOCK).map_err(|error| NodeError::Io {
        path: path.clone(),
        what: "fcntl",
        error: error.into(),
    })?;
    Ok((fd, opened))
}

/// Locks an open file and makes a [`DiskFile`] of it. `device_block`: bytes of a block device's logical block; `None` for a
/// file.
///
/// # Errors
/// [`NodeError::Locked`], [`NodeError::NoDirectIo`], or the kernel's error.
pub(crate) fn lock_and_make_disk_file(
    options: &FileOptions,
    fd: OwnedFd,
    read_only: bool,
    device_block: Option<u32>,
) -> Result<DiskFile, NodeError> {
    let path = &options.path;
    let access = match (read_only, options.force_share) {
        (false, _) => ImageAccess::Write,
        (true, false) => ImageAccess::Read,
        (true, true) => ImageAccess::ReadWhileOthersWrite,
    };
    let fd = LockedFd::with_locks(fd, path, options.locking, access)?;
    let direct = if options.direct {
        let found = Alignment::of_fd(fd.as_fd()).map_err(|error| NodeError::Io {
            path: path.clone(),
            what: "statx",
            error,
        })?;
        Some(found.ok_or_else(|| NodeError::NoDirectIo { path: path.clone() })?)
    } else {
        None
    };
    let block_bytes = direct.map_or(1, |direct| direct.offset);
    let block_mode = PartialBlockMode::for_image(fd.image, block_bytes);
    Ok(DiskFile {
        fd,
        access,
        id: OpenFileId::allocate(),
        // Through the page cache Linux AIO is synchronous: it would block the loop.
        aio: match options.aio {
            Aio::Native if direct.is_none() => Aio::Threads,
            aio => aio,
        },
        unsupported: OpsRefusedByRing::default(),
        aio_max_batch: options.aio_max_batch,
        direct,
        device_block,
        no_flush: options.no_flush,
        block_mode,
        #[cfg(feature = "simulation")]
        simulated: None,
    })
}

/// Refuses a file that is not of the driver's kind.
///
/// # Errors
/// [`NodeError::WrongKind`].
pub(crate) fn check_kind(
    path: &Path,
    driver: &DriverFileKind,
    stat: &Stat,
) -> Result<(), NodeError> {
    let found = FileType::from_raw_mode(stat.st_mode);
    if found == driver.kind {
        return Ok(());
    }
    Err(NodeError::WrongKind {
        path: path.to_owned(),
        driver: driver.name,
        wanted: kind_name(driver.kind),
        found: kind_name(found),
    })
}

/// The kind of a file, for an error's text.
fn kind_name(kind: FileType) -> &'static str {
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
