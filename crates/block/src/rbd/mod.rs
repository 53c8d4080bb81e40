//! Ceph RBD images as disks: an opened image, its queue on each iothread, and its writer lock.

mod disk;
mod queue;
mod status;
mod writer_lock;

pub(crate) use disk::RbdDisk;
pub use disk::RbdOptions;
pub(crate) use queue::RbdQueue;
pub use status::{ImageStatus, WriterLockState};

use std::cell::RefCell;
use std::rc::Rc;

use engine::Request;

/// A part of an image, and the queue that carries its requests on this iothread.
#[derive(Clone)]
pub(crate) struct RbdTarget {
    pub queue: Rc<RefCell<RbdQueue>>,
    /// Where the node begins in the image, in bytes.
    pub base: u64,
    /// Writing zeroes may free space.
    pub unmap: bool,
}

impl RbdTarget {
    /// Translates a request to the node into one to the image.
    pub fn to_image_request(&self, request: &Request) -> Request {
        Request {
            op: request.op.limit_unmap(self.unmap),
            offset: request.offset + self.base,
            ..*request
        }
    }
}
