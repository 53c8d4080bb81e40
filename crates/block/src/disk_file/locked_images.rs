//! Images that this program has locked: who is refused one of them hears that nobody else has it.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An image, by whatever name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    device: u64,
    inode: u64,
}

static LOCKED: Mutex<Vec<Image>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<Image>> {
    // Nothing that can panic runs under the lock.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Image {
    /// What was opened.
    pub fn of(fd: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Image {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// Once more.
    pub fn hold(self) {
        held().push(self);
    }

    /// Once less.
    pub fn release(self) {
        let mut held = held();
        if let Some(at) = held.iter().position(|image| *image == self) {
            held.swap_remove(at);
        }
    }

    pub fn is_held(self) -> bool {
        held().contains(&self)
    }
}
