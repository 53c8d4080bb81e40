//! The list of images that this process has locked, so that a conflict's error can say that it is this process.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The identity of an image: device and inode: the same one under any path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageId {
    device: u64,
    inode: u64,
}

static LOCKED: Mutex<Vec<ImageId>> = Mutex::new(Vec::new());

fn lock_image_list() -> MutexGuard<'static, Vec<ImageId>> {
    // Nothing that can panic runs under the lock.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ImageId {
    /// The image of an open file.
    pub fn of_fd(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(ImageId {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
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
