//! Pointers and strings that are passed to and from Ceph's libraries.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use crate::library::{RawCluster, RawImage, RawPool};

/// A `rados_t` that is not owned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterPointer(pub(crate) RawCluster);

// SAFETY: a `rados_t` may be used and shut down by any thread (librados.h).
unsafe impl Send for ClusterPointer {}
// SAFETY: as above, by several at once.
unsafe impl Sync for ClusterPointer {}

/// A `rados_ioctx_t` that is not owned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolPointer(pub(crate) RawPool);

// SAFETY: a `rados_ioctx_t` may be used by any thread (librados.h).
unsafe impl Send for PoolPointer {}
// SAFETY: as above, by several at once.
unsafe impl Sync for PoolPointer {}

/// An `rbd_image_t` that is not owned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImagePointer(pub(crate) RawImage);

// SAFETY: librbd's functions may be called by any thread.
unsafe impl Send for ImagePointer {}
// SAFETY: as above, by several at once.
unsafe impl Sync for ImagePointer {}

/// The pointer to a string that need not be there.
pub(crate) fn c_str_or_null(text: &Option<CString>) -> *const c_char {
    text.as_deref().map_or(ptr::null(), CStr::as_ptr)
}

/// Reads a string that a library has returned, if it is not null.
///
/// # Safety
/// It is null, or a string that stays until this returns.
pub(crate) unsafe fn text_of(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: our caller promises it.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}
