//! Images that this process has locked, so that the error of a conflict can say that the process itself has the lock.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An image, identified by device and inode: the same one under any path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    device: u64,
    inode: u64,
}

static LOCKED: Mutex<Vec<Image>> = Mutex::new(Vec::new());

fn locked() -> MutexGuard<'static, Vec<Image>> {
    // Nothing that can panic runs under the lock.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Image {
    /// The image of an open file.
    pub fn of(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Image {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// Counts one more lock of the image.
    pub fn add_lock(self) {
        locked().push(self);
    }

    /// Counts one lock less.
    pub fn remove_lock(self) {
        let mut images = locked();
        if let Some(at) = images.iter().position(|image| *image == self) {
            images.swap_remove(at);
        }
    }

    /// Whether this process has locked the image.
    pub fn is_locked(self) -> bool {
        locked().contains(&self)
    }
}
