//! The descriptors of a queue that runs, for whoever goes on with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Duplicates of what a queue is kicked with and signals with.
#[derive(Debug, Default)]
pub struct Descriptors {
    /// Readable when the guest has added something.
    pub kick: Option<OwnedFd>,
    /// To signal the guest with.
    pub call: Option<OwnedFd>,
    /// To tell that the queue is broken.
    pub err: Option<OwnedFd>,
}

/// Another descriptor of the same file.
pub(crate) fn duplicate(fd: Option<impl AsFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(|fd| fd.as_fd().try_clone_to_owned()).transpose()
}
