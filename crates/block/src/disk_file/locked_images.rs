//! The list of images that this process has locked, so that a conflict's error can say that it is this process.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::FileType;

/// The identity of an image, the same one under any path: device and inode of a file, the number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageId {
    device: u64,
    inode: u64,
}

/// Of block devices, in place of an inode: no file has it.
const DEVICE_INODE: u64 = 0;

static LOCKED: Mutex<Vec<ImageId>> = Mutex::new(Vec::new());

fn lock_image_list() -> MutexGuard<'static, Vec<ImageId>> {
    // Nothing that can panic runs under the lock.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ImageId {
    /// The image of an open file.
    pub fn of_fd(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let (device, inode) = match is_device {
            true => (stat.st_rdev, DEVICE_INODE),
            false => (stat.st_dev, stat.st_ino),
        };
        Ok(ImageId { device, inode })
    }

    /// Counts one more lock of the image.
    pub fn add_to_locked(self) {
        lock_image_list().push(self);
    }

    /// Counts one lock less.
    pub fn remove_from_locked(self) {
        let mut images = lock_image_list();
        if let Some(at) = images.iter().position(|image| *image == self) {
            images.swap_remove(at);
        }
    }

    /// Whether this process has locked the image.
    pub fn is_locked_here(self) -> bool {
        lock_image_list().contains(&self)
    }
}
