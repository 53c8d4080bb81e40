//! The trait of the simulator's disks, which carry out requests in the place of an opened file.

use std::os::fd::RawFd;

use engine::{Errno, Request};

/// A disk without a file, on which worker threads carry requests out.
pub trait SimulatedDisk: Send + Sync {
    /// A node is opened: requests to the kernel have this descriptor.
    fn opened_as(&self, fd: RawFd);

    /// The beginning of the next data or hole from a byte on, if there is any.
    fn next_data_or_hole(&self, is_data: bool, from: u64) -> Option<u64>;

    /// Carries a request out, with offsets of the whole disk.
    ///
    /// # Errors
    /// As a disk's.
    ///
    /// # Safety
    /// The segments are valid.
    unsafe fn carry_out(&self, request: &Request) -> Result<(), Errno>;
}
