//! The queue of an image on one iothread: requests to librbd, and those that wait for the writer lock before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ceph::ImageQueue;
use engine::pool::Wake;
use engine::{Completion, Full, Op, Request};
use nbd::client::{RequestGroup, SocketSet};

use super::RbdDisk;
use super::writer_lock::LockAnswer;
use crate::network::{NetworkDisk, NetworkQueue};

/// Requests of all sources of one iothread to one image.
pub(crate) struct RbdQueue {
    queue: ImageQueue,
    disk: Arc<RbdDisk>,
    /// librbd would acquire the lock for a read on its own, and fail writes meanwhile.
    reads_need_lock: bool,
    wake: Wake,
    /// The lock is being acquired.
    acquisition: Option<Arc<LockAnswer>>,
    /// Requests that wait for the lock, in order.
    waiting: VecDeque<Request>,
    /// Flushes that had nothing to do, complete at the next reap.
    empty_flushes: Vec<Completion>,
}

impl NetworkDisk for RbdDisk {
    fn new_queue(
        self: Arc<Self>,
        wake: &Wake,
        _: Option<Rc<SocketSet>>,
    ) -> Rc<RefCell<dyn NetworkQueue>> {
        Rc::new(RefCell::new(RbdQueue::new(self, wake.clone())))
    }

    /// librbd's threads have the sockets.
    fn uses_sockets(&self) -> bool {
        false
    }

    fn add_source(&self) {
        self.writer_lock.add_source();
    }

    fn remove_source(&self) {
        self.writer_lock.remove_source();
    }
}

impl RbdQueue {
    fn new(disk: Arc<RbdDisk>, wake: Wake) -> Self {
        RbdQueue {
            queue: ImageQueue::new(disk.image.clone(), wake.clone()),
            reads_need_lock: disk.reads_need_lock(),
            disk,
            wake,
            acquisition: None,
            waiting: VecDeque::new(),
            empty_flushes: Vec::new(),
        }
    }
}

impl NetworkQueue for RbdQueue {
    fn room(&self) -> usize {
        let taken = self.waiting.len() + self.empty_flushes.len();
        self.queue.room().saturating_sub(taken)
    }

    /// Starts a request, or keeps it until the writer lock is held.
    unsafe fn start(
        &mut self,
        request: &Request,
        _source: u32,
        _group: Option<&Arc<RequestGroup>>,
    ) -> Result<(), Full> {
        let needs_no_lock = request.op == Op::Read && !self.reads_need_lock;
        if needs_no_lock || self.disk.writer_lock.permits_changes() {
            // SAFETY: our caller promises the same.
            return unsafe { self.queue.start(request) };
        }
        if self.room() == 0 {
            return Err(Full);
        }
        if request.op == Op::Flush {
            // Nothing was written since the lock was released, which makes writes stable. librbd would refuse the flush.
            let (token, result) = (request.token, Ok(()));
            self.empty_flushes.push(Completion { token, result });
            return Ok(());
        }
        self.waiting.push_back(*request);
        if self.acquisition.is_none() {
            self.acquisition = Some(self.disk.writer_lock.acquire(self.wake.clone()));
        }
        Ok(())
    }

    /// Requests that waited for the lock are started if it is held, and fail if it was refused.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        let answer = self.acquisition.as_ref().and_then(|answer| answer.result());
        if let Some(result) = answer {
            self.acquisition = None;
            for request in std::mem::take(&mut self.waiting) {
                let token = request.token;
                let failed = match result {
                    // SAFETY: the promise of the caller of `start` lasts until the completion is reaped.
                    Ok(()) => match unsafe { self.queue.start(&request) } {
                        Ok(()) => continue,
                        Err(Full) => unreachable!("room was kept for requests that wait"),
                    },
                    failed => failed,
                };
                out.push(Completion {
                    token,
                    result: failed,
                });
            }
        }
        out.append(&mut self.empty_flushes);
        self.queue.reap(out);
    }

    fn has_completions(&self) -> bool {
        let answer = self.acquisition.as_ref().and_then(|answer| answer.result());
        answer.is_some() || !self.empty_flushes.is_empty() || self.queue.has_completions()
    }
}
