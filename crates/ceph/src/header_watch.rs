//! Watch of an image's header: keeps the size up to date, and calls back after each change.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use engine::Errno;

use crate::errno::check;
use crate::ffi::ImagePointer;
use crate::library::Functions;

/// Called on a thread of librbd when the image's size has changed. It must not wait, nor call the [`Image`](crate::Image) for what waits.
pub type OnResize = Arc<dyn Fn() + Send + Sync>;

/// Called on a thread of librbd when the image's header has changed: size, features, lock, snapshots, metadata. It must not wait.
pub type OnHeaderChange = Box<dyn Fn() + Send + Sync>;

/// The size before the first one is stored. No image is that large.
const UNKNOWN_SIZE: u64 = u64::MAX;

/// The last known size, and the functions that are called after changes.
pub(crate) struct HeaderWatch {
    functions: &'static Functions,
    image: ImagePointer,
    size: AtomicU64,
    on_resize: OnResize,
    on_header_change: OnceLock<OnHeaderChange>,
}

impl HeaderWatch {
    /// One that has not started, and knows no size.
    pub(crate) fn new(
        functions: &'static Functions,
        image: ImagePointer,
        on_resize: OnResize,
    ) -> Self {
        Self {
            functions,
            image,
            size: AtomicU64::new(UNKNOWN_SIZE),
            on_resize,
            on_header_change: OnceLock::new(),
        }
    }

    /// Sets the function that is called after each change. The first function that is set stays.
    pub(crate) fn set_on_header_change(&self, on_header_change: OnHeaderChange) {
        let _ = self.on_header_change.set(on_header_change);
    }

    /// Registers the callback; returns librbd's handle. The image is open, and the watch stays where it is until it is
    /// unregistered.
    pub(crate) fn start(&self) -> Result<u64, Errno> {
        let mut handle = 0;
        // SAFETY: the image is open, and `self` valid until the watch is unregistered.
        check(unsafe {
            (self.functions.rbd_update_watch)(
                self.image.0,
                &raw mut handle,
                image_changed,
                ptr::from_ref(self).cast_mut().cast(),
            )
        })?;
        Ok(handle)
    }

    /// The last known size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Stores the size that was read after the start, unless a callback has stored one, which may be newer.
    pub(crate) fn set_first_size(&self, bytes: u64) {
        let order = Ordering::Relaxed;
        let _ = self
            .size
            .compare_exchange(UNKNOWN_SIZE, bytes, order, order);
    }

    /// Stores the size; true if it is another one.
    fn set_size(&self, bytes: u64) -> bool {
        self.size.swap(bytes, Ordering::Relaxed) != bytes
    }

    /// Reads the size from librbd, which may wait for the cluster.
    pub(crate) fn read_size(&self) -> Result<u64, Errno> {
        let mut size = 0;
        // SAFETY: the image is open: it is closed after the watch, and after all calls.
        check(unsafe { (self.functions.rbd_get_size)(self.image.0, &raw mut size) })?;
        Ok(size)
    }
}

/// Called on a thread of librbd after each change of the image's header: size, features, lock, snapshots, metadata.
///
/// # Safety
/// `watch` is the `HeaderWatch` of an open image.
unsafe extern "C" fn image_changed(watch: *mut c_void) {
    // SAFETY: our caller promises it; librbd waits for us before it unregisters the watch.
    let watch = unsafe { &*watch.cast::<HeaderWatch>() };
    if let Ok(size) = watch.read_size()
        && watch.set_size(size)
    {
        (watch.on_resize)();
    }
    if let Some(on_header_change) = watch.on_header_change.get() {
        on_header_change();
    }
}
