//! The table of images of Ceph clusters that have sources on an iothread, with the queue of each.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::Completion;
use engine::pool::Wake;

use crate::rbd::{RbdDisk, RbdQueue};

/// An image with at least one source on the iothread.
struct AttachedImage {
    disk: Arc<RbdDisk>,
    sources: usize,
    queue: Rc<RefCell<RbdQueue>>,
}

/// The images with sources.
#[derive(Default)]
pub(crate) struct AttachedImages(Vec<AttachedImage>);

impl AttachedImages {
    /// Counts one more source, and returns the queue.
    pub fn add_source(&mut self, disk: &Arc<RbdDisk>, wake: &Wake) -> Rc<RefCell<RbdQueue>> {
        disk.writer_lock.add_source();
        let known = self
            .0
            .iter_mut()
            .find(|image| Arc::ptr_eq(&image.disk, disk));
        if let Some(image) = known {
            image.sources += 1;
            return image.queue.clone();
        }
        let queue = RbdQueue::new(disk.clone(), wake.clone());
        let queue = Rc::new(RefCell::new(queue));
        self.0.push(AttachedImage {
            disk: disk.clone(),
            sources: 1,
            queue: queue.clone(),
        });
        queue
    }

    /// Counts one source less. The last one removes the image and its queue, which has no requests in flight.
    pub fn remove_source(&mut self, disk: &Arc<RbdDisk>) {
        disk.writer_lock.remove_source();
        self.0.retain_mut(|image| {
            if Arc::ptr_eq(&image.disk, disk) {
                image.sources -= 1;
            }
            image.sources > 0
        });
    }

    /// Appends the completions of all images to `out`.
    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        for image in &self.0 {
            image.queue.borrow_mut().reap(out);
        }
    }

    /// Whether [`reap`](Self::reap) may find something; without a system call.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.0
            .iter()
            .any(|image| image.queue.borrow().has_completions())
    }
}
