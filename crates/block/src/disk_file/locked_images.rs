//! The list of images that this process has locked, so that a conflict's error can say that it is this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk_file::image_id::ImageId;

static LOCKED: Mutex<Vec<ImageId>> = Mutex::new(Vec::new());

fn lock_image_list() -> MutexGuard<'static, Vec<ImageId>> {
    // Nothing that can panic runs under the lock.
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ImageId {
    /// Counts one more lock of the image.
    pub(crate) fn add_to_locked(self) {
        lock_image_list().push(self);
    }

    /// Counts one lock less.
    pub(crate) fn remove_from_locked(self) {
        let mut images = lock_image_list();
        if let Some(at) = images.iter().position(|image| *image == self) {
            images.swap_remove(at);
        }
    }

    /// Whether this process has locked the image.
    pub(crate) fn is_locked_here(self) -> bool {
        lock_image_list().contains(&self)
    }
}
