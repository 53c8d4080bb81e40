//! Disks behind a network: what an iothread needs of their queues, whichever protocol these speak, and the room in them that tasks get.

mod nbd;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use ::nbd::client::{RequestGroup, SocketSet};
use engine::{Completion, Full, Request};

use engine::pool::Wake;

use crate::task_share::TaskRoomShare;

/// The queue of a disk on one iothread, with a bounded table of requests.
pub(crate) trait NetworkQueue {
    /// How many requests are certain to be taken before the next reap.
    fn room(&self) -> usize;

    /// Starts a request of the source with this index, or of one of its tasks; or keeps it until it can be sent. `group` is that of a
    /// job that the request is for.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// As for [`IoBackend::start_or_queue`](engine::IoBackend::start_or_queue).
    unsafe fn start(
        &mut self,
        request: &Request,
        source_index: u32,
        group: Option<&Arc<RequestGroup>>,
    ) -> Result<(), Full>;

    /// The submit phase.
    fn submit(&mut self) {}

    /// The reap phase: appends completions to `out`.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Whether [`reap`](Self::reap) may find something; without a system call.
    fn has_completions(&self) -> bool;

    /// Notes that a socket of the iothread is ready, perhaps one of this queue.
    fn note_event(&mut self) {}

    /// Whether the loop has to iterate once more before it blocks, since no event announces what is there already.
    fn must_run_before_blocking(&self) -> bool {
        false
    }

    /// The time at which requests complete by the clock alone (the loop's clock, nanoseconds).
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Whether requests wait that nothing will resume: the loop retries after a moment.
    fn needs_retry(&self) -> bool {
        false
    }

    /// Bounds the waits of the source with this index, and of its tasks, because it is about to end.
    fn end_unbounded_waits(&mut self, _source_index: u32) {}

    /// Notes that the source with this index has ended.
    fn forget_ended_source(&mut self, _source_index: u32) {}
}

/// The queue of a disk behind a network on one iothread, with the room in it that is reserved for tasks.
pub(crate) struct NetworkQueueWithTaskShare<Q: ?Sized = dyn NetworkQueue> {
    /// Room that sources leave for tasks.
    task_share: TaskRoomShare,
    pub queue: Q,
}

impl<Q: NetworkQueue> NetworkQueueWithTaskShare<Q> {
    /// Wraps a new queue, of which nothing is reserved.
    pub fn new(queue: Q) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(NetworkQueueWithTaskShare {
            task_share: TaskRoomShare::default(),
            queue,
        }))
    }
}

impl NetworkQueueWithTaskShare {
    /// How many requests of sources are certain to be taken before the next reap.
    pub fn room_for_sources(&self) -> usize {
        let reserved = self.task_share.reserved_room();
        self.queue.room().saturating_sub(reserved)
    }

    /// After the reap phase: reserves room for tasks that were refused before.
    pub fn reserve_room_for_refused_tasks(&mut self) {
        let room = self.queue.room();
        self.task_share.reserve_part_for_refused_tasks(room);
    }

    /// Before the requests of tasks are submitted.
    pub fn release_room_reserved_for_tasks(&mut self) {
        self.task_share.release_room_reserved_for_tasks();
    }
}

/// A disk behind a network, which sources on several iothreads may use.
pub(crate) trait NetworkDisk: Send + Sync {
    /// Makes its queue on an iothread. Other threads wake the iothread by `wake`.
    fn new_queue(
        self: Arc<Self>,
        wake: &Wake,
        sockets: Option<Rc<SocketSet>>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>>;

    /// Whether its queues have sockets that the loop watches.
    fn uses_sockets(&self) -> bool;

    /// Counts one more source of requests.
    fn add_source(&self) {}

    /// Counts one source less.
    fn remove_source(&self) {}
}

/// A part of a disk, and the queue that carries its requests on this iothread.
#[derive(Clone)]
pub(crate) struct NetworkTarget {
    pub queue: Rc<RefCell<NetworkQueueWithTaskShare>>,
    /// Where the node begins on the disk, in bytes.
    pub base: u64,
    /// Writing zeroes may free space.
    pub unmap: bool,
    /// The group of requests that are for a job.
    pub group: Option<Arc<RequestGroup>>,
}

impl NetworkTarget {
    /// Submits a request of the source with this index to the node, as one to the disk.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// As for [`IoContext::submit`](crate::IoContext::submit).
    pub unsafe fn submit(&self, request: &Request, source_index: u32) -> Result<(), Full> {
        let request = Request {
            op: request.op.limit_unmap(self.unmap),
            offset: request.offset + self.base,
            ..*request
        };
        // SAFETY: our caller promises the same.
        unsafe {
            let mut wrapper = self.queue.borrow_mut();
            wrapper
                .queue
                .start(&request, source_index, self.group.as_ref())
        }
    }

    /// Submits a request of a task, as [`submit`](Self::submit) does one of a source. A refusal is counted, so that sources leave room
    /// after the next reap.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    pub unsafe fn submit_for_task(&self, request: &Request, source_index: u32) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        let taken = unsafe { self.submit(request, source_index) };
        if taken.is_err() {
            self.queue.borrow_mut().task_share.record_refusal();
        }
        taken
    }
}
