//! The trait of the simulator's disks, which carry out requests in the place of an opened file.

use engine::{Errno, Request};

/// A disk without a file, on which worker threads carry requests out.
pub trait SimulatedDisk: Send + Sync {
    /// Carries a request out, with offsets of the whole disk.
    ///
    /// # Errors
    /// As a disk's.
    ///
    /// # Safety
    /// The segments are valid.
    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno>;
}
