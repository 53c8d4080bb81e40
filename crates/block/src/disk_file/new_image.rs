//! Creates raw images for the job of `blockdev-create`: new files, or existing ones whose content is replaced, with their space
//! allocated if that is wanted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, IFlags, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Getter, Setter, opcode};

use crate::disk_file::image_id::ImageId;
use crate::disk_file::lock::{ImageAccess, LockedFd, Locking};
use crate::disk_file::open::{DriverFileKind, check_kind};
use crate::error::NodeError;

/// Bytes that are allocated by one call.
const ALLOCATED_PIECE: u64 = 1 << 30;
/// Bytes of zeroes that are written by one call.
const WRITTEN_PIECE: usize = 1 << 20;
/// Written bytes after which they are flushed, so that neither the end nor a cancellation waits for a full page cache.
const FLUSHED_BYTES: u64 = 64 << 20;

/// What is done for the space of a new image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preallocation {
    /// Nothing: the file is one hole.
    #[default]
    Off,
    /// It is allocated.
    Falloc,
    /// Zeroes are written.
    Full,
}

/// An image to create.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// What is done for its space.
    pub preallocation: Preallocation,
    /// Its blocks are overwritten in place, where the file system would write them elsewhere.
    pub nocow: bool,
    /// Bytes that the file system allocates at once, where that can be chosen; 0: its default.
    pub extent_size_hint: u32,
}

/// Why an image was not created. An image whose content was given up is empty.
#[derive(Debug, thiserror::Error)]
pub enum NewImageError {
    /// A node has the file open.
    #[error("{} is in use by node '{node}': remove the node first, or choose another file", path.display())]
    InUse {
        /// Its path.
        path: PathBuf,
        /// The name of the node.
        node: String,
    },
    /// A program has it as a file of its own: a `bitmap-file`, `pr-file` or `pidfile`, perhaps of this daemon.
    #[error("{} is locked (flock) by a program that uses it, perhaps this daemon: choose another file", .0.display())]
    Locked(PathBuf),
    /// It is no file, or another opening has locks.
    #[error(transparent)]
    Refused(#[from] NodeError),
    /// The kernel's error.
    #[error("{what}: {error}")]
    Failed {
        /// What failed.
        what: String,
        /// The error.
        error: io::Error,
    },
    /// It was to end.
    #[error("cancelled")]
    Cancelled,
}

impl NewImage {
    /// Creates it, unless one of these nodes has the file, or another opening. Ends early if `cancelled` becomes true.
    ///
    /// # Errors
    /// See [`NewImageError`].
    pub fn create(
        &self,
        nodes: &[(String, ImageId)],
        cancelled: &AtomicBool,
    ) -> Result<(), NewImageError> {
        let fd = self.open()?;
        let image = ImageId::of_fd(fd.as_fd()).map_err(|e| self.not_opened(e))?;
        if let Some((node, _)) = nodes.iter().find(|(_, used)| *used == image) {
            return Err(NewImageError::InUse {
                path: self.path.clone(),
                node: node.clone(),
            });
        }
        let lock = || rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive);
        match retry_on_intr(lock) {
            // A file system without these locks has none.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK | Errno::INVAL) => {}
            Err(_) => return Err(NewImageError::Locked(self.path.clone())),
        }
        let file = LockedFd::with_locks(fd, &self.path, Locking::Auto, ImageAccess::Replace)?;
        set_len(&file, 0)?;
        self.set_attributes(&file);
        let filled = self.fill(&file, cancelled);
        if filled.is_err() {
            // An image of the right size that is not complete could be taken for one.
            let _ = set_len(&file, 0);
        }
        filled
    }

    /// Opens the file, or makes it.
    fn open(&self) -> Result<OwnedFd, NewImageError> {
        // Opening something else may hang, or change it. A folder is not opened for writing.
        match rustix::fs::stat(&self.path) {
            Ok(stat) if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() => {
                check_kind(&self.path, &DriverFileKind::FILE, &stat)?;
            }
            _ => {}
        }
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(0o644);
        let fd = retry_on_intr(|| rustix::fs::open(&self.path, flags, mode));
        let fd = fd.map_err(|error| self.not_opened(error))?;
        let opened = rustix::fs::fstat(&fd).map_err(|error| self.not_opened(error))?;
        check_kind(&self.path, &DriverFileKind::FILE, &opened)?;
        Ok(fd)
    }

    fn not_opened(&self, error: Errno) -> NewImageError {
        failed(format!("Could not create '{}'", self.path.display()))(error)
    }

    /// Sets what the file system has to know before there is data. Where it does not, the image is one without.
    fn set_attributes(&self, file: &LockedFd) {
        let unset = |attribute, error: Errno| {
            let path = self.path.display();
            tracing::debug!(%path, attribute, %error, "the file system does not set this");
        };
        if self.nocow {
            let set = rustix::fs::ioctl_getflags(file)
                .and_then(|flags| rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW));
            set.unwrap_or_else(|error| unset("nocow", error));
        }
        if self.extent_size_hint > 0 {
            set_extent_size(file, self.extent_size_hint)
                .unwrap_or_else(|error| unset("extent-size-hint", error));
        }
    }

    /// Gives an empty file its size and space.
    fn fill(&self, file: &LockedFd, cancelled: &AtomicBool) -> Result<(), NewImageError> {
        set_len(file, self.size)?;
        match self.preallocation {
            Preallocation::Off => Ok(()),
            Preallocation::Falloc => self.allocate(file, cancelled),
            Preallocation::Full => self.write_zeroes(file, 0, cancelled),
        }
    }

    fn allocate(&self, file: &LockedFd, cancelled: &AtomicBool) -> Result<(), NewImageError> {
        let mut at = 0;
        while at < self.size {
            check_not_cancelled(cancelled)?;
            let len = ALLOCATED_PIECE.min(self.size - at);
            match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), at, len)) {
                Ok(()) => at += len,
                Err(Errno::OPNOTSUPP) => return self.write_zeroes(file, at, cancelled),
                Err(error) => {
                    return Err(failed("Could not preallocate new data")(error));
                }
            }
        }
        Ok(())
    }

    fn write_zeroes(
        &self,
        file: &LockedFd,
        mut at: u64,
        cancelled: &AtomicBool,
    ) -> Result<(), NewImageError> {
        let zeroes = vec![0; WRITTEN_PIECE];
        let flush = || {
            let flushed = retry_on_intr(|| rustix::fs::fdatasync(file));
            flushed.map_err(failed("Could not flush file to disk"))
        };
        let mut flushed = at;
        while at < self.size {
            check_not_cancelled(cancelled)?;
            let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
            let piece = &zeroes[..left.min(WRITTEN_PIECE)];
            let written = retry_on_intr(|| rustix::io::pwrite(file, piece, at));
            let written = written.map_err(failed("Could not write zeros for preallocation"))?;
            at += written as u64;
            if at - flushed >= FLUSHED_BYTES {
                flush()?;
                flushed = at;
            }
        }
        flush()
    }
}

/// The error of an operation, from the kernel's.
fn failed(what: impl Into<String>) -> impl FnOnce(Errno) -> NewImageError {
    move |error| NewImageError::Failed {
        what: what.into(),
        error: error.into(),
    }
}

fn set_len(file: &LockedFd, size: u64) -> Result<(), NewImageError> {
    let set = retry_on_intr(|| rustix::fs::ftruncate(file, size));
    set.map_err(failed("Could not resize file"))
}

fn check_not_cancelled(cancelled: &AtomicBool) -> Result<(), NewImageError> {
    match cancelled.load(Ordering::Acquire) {
        true => Err(NewImageError::Cancelled),
        false => Ok(()),
    }
}

/// `struct fsxattr` of ioctl_xfs_fsgetxattr(2).
#[repr(C)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    others: [u32; 5],
}

/// The flag for `extent_size`.
const HAS_EXTENT_SIZE: u32 = 0x800;

fn set_extent_size(file: &LockedFd, bytes: u32) -> rustix::io::Result<()> {
    const GET: rustix::ioctl::Opcode = opcode::read::<FileAttributes>(b'X', 31);
    const SET: rustix::ioctl::Opcode = opcode::write::<FileAttributes>(b'X', 32);
    // SAFETY: the kernel fills a struct of this layout.
    let mut attributes = unsafe {
        let get = Getter::<GET, FileAttributes>::new();
        rustix::ioctl::ioctl(file, get)?
    };
    attributes.flags |= HAS_EXTENT_SIZE;
    attributes.extent_size = bytes;
    // SAFETY: the kernel reads a struct of this layout.
    unsafe {
        let set = Setter::<SET, FileAttributes>::new(attributes);
        rustix::ioctl::ioctl(file, set)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn image(path: PathBuf, preallocation: Preallocation) -> NewImage {
        NewImage {
            path,
            size: 3 << 20,
            preallocation,
            nocow: true,
            extent_size_hint: 1 << 20,
        }
    }

    #[test]
    fn space_is_allocated_as_wanted_and_old_content_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        for (preallocation, is_allocated) in [
            (Preallocation::Off, false),
            (Preallocation::Falloc, true),
            (Preallocation::Full, true),
        ] {
            let path = folder.path().join("disk.img");
            fs::write(&path, vec![7; 5 << 20]).unwrap();
            let image = image(path.clone(), preallocation);
            image.create(&[], &AtomicBool::new(false)).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.len(), 3 << 20);
            let allocated = metadata.blocks() * 512;
            assert_eq!(allocated >= 3 << 20, is_allocated, "{preallocation:?}");
            assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn file_of_a_node_is_not_changed_under_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        fs::write(&path, [7; 512]).unwrap();
        let file = fs::File::open(&path).unwrap();
        let node = ("disk".to_owned(), ImageId::of_fd(file.as_fd()).unwrap());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let refused = image(link, Preallocation::Off).create(&[node], &AtomicBool::new(false));
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("node 'disk'"), "{refused}");
        // Nor is one that is locked as a whole, as files of bitmaps are.
        rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
        let image = image(path.clone(), Preallocation::Off);
        let refused = image.create(&[], &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(refused, NewImageError::Locked(_)), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), [7; 512]);
        drop(file);
        image.create(&[], &AtomicBool::new(false)).unwrap();
    }

    #[test]
    fn file_that_another_opening_uses_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let image = image(path.clone(), Preallocation::Off);
        for access in [
            ImageAccess::Write,
            ImageAccess::Read,
            ImageAccess::ReadWhileOthersWrite,
            ImageAccess::Replace,
        ] {
            fs::write(&path, [7; 512]).unwrap();
            let file = fs::OpenOptions::new().read(true).write(true).open(&path);
            let other = LockedFd::with_locks(file.unwrap().into(), &path, Locking::On, access);
            let other = other.unwrap();
            let refused = image.create(&[], &AtomicBool::new(false)).unwrap_err();
            assert!(
                refused.to_string().contains("failed to get"),
                "{access:?}: {refused}"
            );
            assert_eq!(fs::read(&path).unwrap(), [7; 512], "{access:?}");
            drop(other);
            image.create(&[], &AtomicBool::new(false)).unwrap();
        }
    }
}
