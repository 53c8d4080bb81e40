//! Ceph RBD images as disks: an opened image, its queue on each iothread, and its writer lock.

mod disk;
mod lockable_image;
mod queue;
mod status;
mod writer_lock;

pub(crate) use disk::RbdDisk;
pub use disk::RbdOptions;
pub use status::ImageStatus;
pub use writer_lock::WriterLockState;
