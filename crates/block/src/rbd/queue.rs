//! The queue of an image on one iothread: requests to librbd, and those that wait for the writer lock before.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ceph::ImageQueue;
use engine::pool::Wake;
use engine::{Completion, Errno, Full, Op, Request};
use nbd::client::{RequestGroup, SocketSet};

use super::RbdDisk;
use super::writer_lock::{LockAnswer, WAIT_FOR_HOLDER, WriterLock};
use crate::clock::now_ns;
use crate::network::{NetworkDisk, NetworkQueue, NetworkQueueWithTaskShare};

/// How long the requests of a source that is about to end wait for the lock. The source of a migration has released the lock by then.
const STOP_TIMEOUT_NS: u64 = WAIT_FOR_HOLDER.as_secs() * 1_000_000_000;

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
    /// Requests that wait for the lock, in order, each with the index of its source.
    waiting: VecDeque<(Request, u32)>,
    /// Sources that are about to end, each with the time at which its waiting requests fail (the loop's clock).
    stops: Vec<(u32, u64)>,
    /// Flushes that had nothing to do, complete at the next reap.
    empty_flushes: Vec<Completion>,
}

impl NetworkDisk for RbdDisk {
    fn new_queue(
        self: Arc<Self>,
        wake: &Wake,
        _: Option<Rc<SocketSet>>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>> {
        let queue = ImageQueue::new(self.image.clone(), wake.clone());
        let (lock, reads_need_lock) = (self.writer_lock.clone(), self.reads_need_lock());
        NetworkQueueWithTaskShare::new(RbdQueue::new(queue, lock, reads_need_lock, wake.clone()))
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
            stops: Vec::new(),
            empty_flushes: Vec::new(),
        }
    }

    /// Fails the requests of sources that have waited for the lock for long enough, because they are about to end: none was sent.
    fn fail_requests_of_timed_out_stops(&mut self, out: &mut Vec<Completion>) {
        let (stops, now_ns) = (&self.stops, now_ns());
        let is_over = |source: u32| {
            let mut stops = stops.iter();
            stops.any(|(stopping, deadline_ns)| *stopping == source && *deadline_ns <= now_ns)
        };
        self.waiting.retain(|(request, source)| {
            let fails = is_over(*source);
            if fails {
                let (token, result) = (request.token, Err(Errno::IO));
                out.push(Completion { token, result });
            }
            !fails
        });
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
        _source_index: u32,
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
        source_index: u32,
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
        self.waiting.push_back((*request, source_index));
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
            for (request, _) in std::mem::take(&mut self.waiting) {
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
        if !self.stops.is_empty() {
            self.fail_requests_of_timed_out_stops(out);
        }
        out.append(&mut self.empty_flushes);
        self.queue.reap(out);
    }

    fn has_completions(&self) -> bool {
        let answer = self.acquisition.as_ref().and_then(|answer| answer.result());
        answer.is_some() || !self.empty_flushes.is_empty() || self.queue.has_completions()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let sources_that_wait = self.waiting.iter().map(|(_, source)| source);
        let stops = self.stops.iter().filter(|(source, _)| {
            let mut waiting = sources_that_wait.clone();
            waiting.any(|waiting| waiting == source)
        });
        stops.map(|(_, deadline_ns)| *deadline_ns).min()
    }

    fn end_unbounded_waits(&mut self, source_index: u32) {
        let deadline_ns = now_ns().saturating_add(STOP_TIMEOUT_NS);
        self.stops.push((source_index, deadline_ns));
    }

    fn forget_ended_source(&mut self, source_index: u32) {
        self.stops.retain(|(stopping, _)| *stopping != source_index);
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

    #[test]
    fn write_of_a_stopping_source_waits_for_the_lock_for_a_limited_time() {
        let wake: Wake = Arc::new(|| ());
        let lock = Arc::new(Taken(LockAnswer::new(wake.clone())));
        let mut queue = RbdQueue::new(FewPlaces::default(), lock, false, wake);
        for (token, source) in [(1, 7), (2, 8)] {
            let write = Request::without_data(Op::Write, 0, 0, token);
            // SAFETY: there is no memory.
            unsafe { queue.start(&write, source, None) }.unwrap();
        }
        assert_eq!(queue.next_deadline_ns(), None);
        queue.end_unbounded_waits(7);
        assert_eq!(queue.next_deadline_ns(), Some(queue.stops[0].1));
        let mut failed = Vec::new();
        queue.reap(&mut failed);
        assert!(failed.is_empty());
        queue.stops[0].1 = 0;
        queue.reap(&mut failed);
        let result = Err(Errno::IO);
        assert_eq!(failed, [Completion { token: 1, result }]);
        assert_eq!(queue.next_deadline_ns(), None, "the other one waits");
    }
}
