//! The functions of librados and librbd that are used, with their types (`rados/librados.h`, `rbd/librbd.h`, Ceph 16).
//!
//! All return 0 or a count, or an error number of the kernel with a minus sign, unless stated otherwise.

use std::ffi::{c_char, c_int, c_void};

use libc::{iovec, size_t, ssize_t};
use libloading::Library;

use super::LoadError;

/// `rados_t`.
pub(crate) type RawCluster = *mut c_void;
/// `rados_ioctx_t`: a pool, with its namespace.
pub(crate) type RawPool = *mut c_void;
/// `rbd_image_t`.
pub(crate) type RawImage = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type RawCompletion = *mut c_void;

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const ZEROES_THICK_PROVISION: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const EXCLUSIVE_LOCK_FEATURE: u64 = 1 << 2;
/// `RBD_FEATURE_JOURNALING`.
pub(crate) const JOURNALING_FEATURE: u64 = 1 << 6;
/// `RBD_FEATURE_FAST_DIFF`.
pub(crate) const FAST_DIFF_FEATURE: u64 = 1 << 4;
/// `RBD_FLAG_FAST_DIFF_INVALID`.
pub(crate) const FAST_DIFF_INVALID_FLAG: u64 = 1 << 1;
/// Return value of our callback of `rbd_diff_iterate2` that ends the iteration, which then returns it: no error of librbd.
pub(crate) const DIFF_STOPPED: c_int = -9000;

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) object_bytes: u64,
    pub(crate) objects: u64,
    pub(crate) order: c_int,
    pub(crate) block_name_prefix: [c_char; 24],
    pub(crate) parent_pool: i64,
    pub(crate) parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watcher {
    pub(crate) address: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// A library that is loaded for the rest of the process's life.
#[derive(Clone, Copy)]
pub(super) struct LoadedLibrary {
    pub(super) file: &'static str,
    pub(super) library: &'static Library,
}

/// Both libraries.
#[derive(Clone, Copy)]
pub(super) struct Libraries {
    pub(super) rados: LoadedLibrary,
    pub(super) rbd: LoadedLibrary,
}

/// Makes a table of functions, and a function that looks them up.
macro_rules! table {
    ($($library:ident { $($name:ident = fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* })*) => {
        /// The functions.
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Functions {
            /// Looks the functions up.
            pub(super) fn resolve(libraries: Libraries) -> Result<Self, LoadError> {
                Ok(Self {
                    $($(
                        // SAFETY: the type is that of the library's header.
                        $name: *unsafe { libraries.$library.library.get(stringify!($name)) }
                            .map_err(|_| LoadError::Function {
                                library: libraries.$library.file,
                                function: stringify!($name),
                            })?,
                    )*)*
                })
            }
        }
    };
}

table! {
    rados {
    rados_create = fn(*mut RawCluster, *const c_char) -> c_int;
    rados_conf_read_file = fn(RawCluster, *const c_char) -> c_int;
    rados_conf_set = fn(RawCluster, *const c_char, *const c_char) -> c_int;
    rados_conf_get = fn(RawCluster, *const c_char, *mut c_char, size_t) -> c_int;
    rados_connect = fn(RawCluster) -> c_int;
    rados_shutdown = fn(RawCluster);
    rados_get_instance_id = fn(RawCluster) -> u64;
    rados_cluster_fsid = fn(RawCluster, *mut c_char, size_t) -> c_int;
    rados_ioctx_create = fn(RawCluster, *const c_char, *mut RawPool) -> c_int;
    rados_ioctx_set_namespace = fn(RawPool, *const c_char);
    rados_set_pool_full_try = fn(RawPool);
    rados_exec = fn(
        RawPool, *const c_char, *const c_char, *const c_char, *const c_char, size_t, *mut c_char, size_t
    ) -> c_int;
    rados_list_lockers = fn(
        RawPool, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut size_t, *mut c_char, *mut size_t,
        *mut c_char, *mut size_t, *mut c_char, *mut size_t
    ) -> ssize_t;
    rados_break_lock = fn(RawPool, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
    rados_blocklist_add = fn(RawCluster, *mut c_char, u32) -> c_int;
    rados_ioctx_destroy = fn(RawPool);
    }
    rbd {
    rbd_open = fn(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
    rbd_open_read_only = fn(RawPool, *const c_char, *mut RawImage, *const c_char) -> c_int;
    rbd_close = fn(RawImage) -> c_int;
    rbd_stat = fn(RawImage, *mut ImageInfo, size_t) -> c_int;
    rbd_get_size = fn(RawImage, *mut u64) -> c_int;
    rbd_get_stripe_unit = fn(RawImage, *mut u64) -> c_int;
    rbd_get_stripe_count = fn(RawImage, *mut u64) -> c_int;
    rbd_get_features = fn(RawImage, *mut u64) -> c_int;
    rbd_get_flags = fn(RawImage, *mut u64) -> c_int;
    rbd_get_overlap = fn(RawImage, *mut u64) -> c_int;
    rbd_update_watch = fn(RawImage, *mut u64, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    rbd_update_unwatch = fn(RawImage, u64) -> c_int;
    rbd_resize = fn(RawImage, u64) -> c_int;
    rbd_flush = fn(RawImage) -> c_int;
    rbd_diff_iterate2 = fn(
        RawImage, *const c_char, u64, u64, u8, u8,
        unsafe extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int, *mut c_void
    ) -> c_int;
    rbd_is_exclusive_lock_owner = fn(RawImage, *mut c_int) -> c_int;
    rbd_lock_acquire = fn(RawImage, c_int) -> c_int;
    rbd_lock_release = fn(RawImage) -> c_int;
    rbd_metadata_list = fn(
        RawImage, *const c_char, u64, *mut c_char, *mut size_t, *mut c_char, *mut size_t
    ) -> c_int;
    rbd_get_id = fn(RawImage, *mut c_char, size_t) -> c_int;
    rbd_watchers_list = fn(RawImage, *mut Watcher, *mut size_t) -> c_int;
    rbd_watchers_list_cleanup = fn(*mut Watcher, size_t);
    rbd_aio_create_completion = fn(
        *mut c_void, unsafe extern "C" fn(RawCompletion, *mut c_void), *mut RawCompletion
    ) -> c_int;
    rbd_aio_get_return_value = fn(RawCompletion) -> ssize_t;
    rbd_aio_release = fn(RawCompletion);
    rbd_aio_readv = fn(RawImage, *const iovec, c_int, u64, RawCompletion) -> c_int;
    rbd_aio_writev = fn(RawImage, *const iovec, c_int, u64, RawCompletion) -> c_int;
    rbd_aio_flush = fn(RawImage, RawCompletion) -> c_int;
    rbd_aio_discard = fn(RawImage, u64, u64, RawCompletion) -> c_int;
    rbd_aio_write_zeroes = fn(RawImage, u64, size_t, RawCompletion, c_int, c_int) -> c_int;
    }
}
