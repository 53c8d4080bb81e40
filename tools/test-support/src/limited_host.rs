//! Hosts with restrictions, for tests: refused system calls, file systems without holes.
//!
//! Some failures need a file system, a device or a kernel that a test machine does not have. [`with_errno`] makes any
//! kernel refuse system calls, without privileges; [`ramfs_folder`] is a file system whose files cannot have holes;
//! [`confined`] is the daemon's own sandbox.

mod calls;
pub mod confined;
mod ramfs;

pub use calls::{Call, refuse, with_errno};
pub use ramfs::{Ramfs, ramfs_folder};
