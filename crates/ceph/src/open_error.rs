//! Errors of opening an image, with what to check.

use std::ffi::NulError;
use std::io;
use std::time::Duration;

use engine::Errno;

/// Failure to open an image.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A zero byte in a name.
    #[error("a name of the image has a zero byte: {0}")]
    ZeroByte(#[from] NulError),
    /// The pool does not exist.
    #[error("there is no pool {pool} in the Ceph cluster: `ceph osd pool ls` lists them")]
    NoPool {
        /// The pool.
        pool: String,
    },
    /// The image or its snapshot does not exist.
    #[error(
        "there is no {image} in the Ceph cluster: `rbd ls` and `rbd snap ls` list images and snapshots"
    )]
    NoImage {
        /// The image's name with pool, namespace and snapshot.
        image: String,
    },
    /// The client's capabilities do not suffice.
    #[error(
        "{image}: the Ceph cluster does not permit it ({errno}): the client needs the capabilities `profile rbd`, for reading `profile rbd-read-only`"
    )]
    Permission {
        /// The image's name with pool, namespace and snapshot.
        image: String,
        /// librbd's error.
        errno: Errno,
    },
    /// It took too long.
    #[error("{image}: not opened within {} s: `ceph health detail` shows what the cluster waits for", timeout.as_secs_f64())]
    Timeout {
        /// The image's name with pool, namespace and snapshot.
        image: String,
        /// The limit.
        timeout: Duration,
    },
    /// The image's thread could not be started.
    #[error(
        "{image}: cannot start the thread for its calls to Ceph: {error}; see TasksMax= and `ulimit -u`"
    )]
    Thread {
        /// The image's name with pool, namespace and snapshot.
        image: String,
        /// The reason.
        error: io::Error,
    },
    /// Another error.
    #[error("cannot open {image}: {errno}")]
    Failed {
        /// The image's name with pool, namespace and snapshot.
        image: String,
        /// librbd's error.
        errno: Errno,
    },
}
