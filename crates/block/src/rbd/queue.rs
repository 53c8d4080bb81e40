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
use super::writer_lock::{LockAnswer, WriterLock};
use crate::network::{NetworkDisk, NetworkQueue, SharedQueue};

/// What the queue needs of the writer lock; the test has its own.
trait WriterLockAccess {
    fn permits_changes(&self) -> bool;

    fn acquire(self: &Arc<Self>, wake: Wake) -> Arc<LockAnswer>;
}

/// Requests of all sources of one iothread to one image.
pub(crate) struct RbdQueue<Q = ImageQueue, L = WriterLock> {
    queue: Q,
    lock: Arc<L>,
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
    ) -> Rc<RefCell<SharedQueue>> {
        let queue = ImageQueue::new(self.image.clone(), wake.clone());
        let (lock, reads_need_lock) = (self.writer_lock.clone(), self.reads_need_lock());
        SharedQueue::new(RbdQueue::new(queue, lock, reads_need_lock, wake.clone()))
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

impl<Q: NetworkQueue, L> RbdQueue<Q, L> {
    fn new(queue: Q, lock: Arc<L>, reads_need_lock: bool, wake: Wake) -> Self {
        RbdQueue {
            queue,
            lock,
            reads_need_lock,
            wake,
            acquisition: None,
            waiting: VecDeque::new(),
            empty_flushes: Vec::new(),
        }
    }

    /// librbd serves all sources and jobs alike.
    ///
    /// # Safety
    /// As for [`NetworkQueue::start`].
    unsafe fn start_at_image(&mut self, request: &Request) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        unsafe { self.queue.start(request, 0, None) }
    }
}

impl NetworkQueue for ImageQueue {
    fn room(&self) -> usize {
        ImageQueue::room(self)
    }

    unsafe fn start(
        &mut self,
        request: &Request,
        _source: u32,
        _group: Option<&Arc<RequestGroup>>,
    ) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        unsafe { ImageQueue::start(self, request) }
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        ImageQueue::reap(self, out);
    }

    fn has_completions(&self) -> bool {
        ImageQueue::has_completions(self)
    }
}

impl WriterLockAccess for WriterLock {
    fn permits_changes(&self) -> bool {
        WriterLock::permits_changes(self)
    }

    fn acquire(self: &Arc<Self>, wake: Wake) -> Arc<LockAnswer> {
        WriterLock::acquire(self, wake)
    }
}

impl<Q: NetworkQueue, L: WriterLockAccess> NetworkQueue for RbdQueue<Q, L> {
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
        // Tasks start requests without asking for room. The places of requests that wait for the lock stay free for them.
        if self.room() == 0 {
            return Err(Full);
        }
        let needs_no_lock = request.op == Op::Read && !self.reads_need_lock;
        if needs_no_lock || self.lock.permits_changes() {
            // SAFETY: our caller promises the same.
            return unsafe { self.start_at_image(request) };
        }
        if request.op == Op::Flush {
            // Nothing was written since the lock was released, which makes writes stable. librbd would refuse the flush.
            let (token, result) = (request.token, Ok(()));
            self.empty_flushes.push(Completion { token, result });
            return Ok(());
        }
        self.waiting.push_back(*request);
        if self.acquisition.is_none() {
            self.acquisition = Some(self.lock.acquire(self.wake.clone()));
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
                    Ok(()) => match unsafe { self.start_at_image(&request) } {
                        Ok(()) => continue,
                        Err(Full) => unreachable!("`start` leaves places for requests that wait"),
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

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 4;

    /// Requests that never complete.
    #[derive(Default)]
    struct FewPlaces(Vec<Op>);

    impl NetworkQueue for FewPlaces {
        fn room(&self) -> usize {
            PLACES - self.0.len()
        }

        unsafe fn start(
            &mut self,
            request: &Request,
            _: u32,
            _: Option<&Arc<RequestGroup>>,
        ) -> Result<(), Full> {
            if self.room() == 0 {
                return Err(Full);
            }
            self.0.push(request.op);
            Ok(())
        }

        fn reap(&mut self, _: &mut Vec<Completion>) {}

        fn has_completions(&self) -> bool {
            false
        }
    }

    /// A lock that another client has.
    struct Taken(Arc<LockAnswer>);

    impl WriterLockAccess for Taken {
        fn permits_changes(&self) -> bool {
            false
        }

        fn acquire(self: &Arc<Self>, _: Wake) -> Arc<LockAnswer> {
            self.0.clone()
        }
    }

    #[test]
    fn write_that_waits_for_the_lock_keeps_its_place_beside_reads_that_do_not() {
        let wake: Wake = Arc::new(|| ());
        let answer = LockAnswer::new(wake.clone());
        let lock = Arc::new(Taken(answer.clone()));
        let mut queue = RbdQueue::new(FewPlaces::default(), lock, false, wake);
        // SAFETY: there is no memory.
        let start = |queue: &mut RbdQueue<_, _>, op| unsafe {
            queue.start(&Request::without_data(op, 0, 0, 0), 0, None)
        };
        assert!(start(&mut queue, Op::Write).is_ok());
        let reads = (0..PLACES).map(|_| start(&mut queue, Op::Read).is_ok());
        assert!(reads.eq([true, true, true, false]));
        answer.set_and_wake(true);
        queue.reap(&mut Vec::new());
        assert_eq!(queue.queue.0, [Op::Read, Op::Read, Op::Read, Op::Write]);
    }
}
