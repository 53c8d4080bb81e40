//! The work of a job: it copies disks, or creates an image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::BlockCopy;

/// The work of a job.
pub(crate) enum JobWork {
    /// It copies its disks.
    Copy(Arc<BlockCopy>),
    /// A thread creates an image, until the flag is set.
    Create(Arc<AtomicBool>),
}

impl JobWork {
    /// The copy of a job that copies disks.
    pub fn copy(&self) -> Option<&Arc<BlockCopy>> {
        match self {
            JobWork::Copy(copy) => Some(copy),
            JobWork::Create(_) => None,
        }
    }

    /// Ends it: no further piece begins.
    pub fn end(&self) {
        match self {
            JobWork::Copy(copy) => copy.end(),
            JobWork::Create(cancelled) => cancelled.store(true, Ordering::Release),
        }
    }
}
