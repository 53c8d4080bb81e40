//! Locks of files that are no images, so that no node is opened on them.

use std::io;
use std::os::fd::BorrowedFd;

use super::lock::{ImageAccess, is_unsupported, lock_all};

/// Locks a file that is no image, for example a `bitmap-file`, against every use as one, by this program or QEMU, as long as it is open.
/// False: it is in use as an image. Where the file system has no such locks, there is none.
///
/// # Errors
/// Those of `fcntl(2)`.
pub fn lock_out_images(file: BorrowedFd<'_>) -> io::Result<bool> {
    match lock_all(file, ImageAccess::Replace) {
        Ok(conflict) => Ok(conflict.is_none()),
        Err(error) if is_unsupported(&error) => Ok(true),
        Err(error) => Err(error),
    }
}
