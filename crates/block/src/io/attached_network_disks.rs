//! The table of disks behind a network that have sources on an iothread, with the queue of each.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use engine::Completion;
use engine::pool::Wake;
use nbd::client::SocketSet;

use super::attach::Watch;
use super::lazy_engine::LazyEngine;
use crate::network::{NetworkDisk, NetworkQueue, NetworkQueueWithTaskShare};

/// A disk with at least one source on the iothread.
struct AttachedDisk {
    disk: Arc<dyn NetworkDisk>,
    sources: usize,
    queue: Rc<RefCell<NetworkQueueWithTaskShare>>,
}

impl AttachedDisk {
    fn is(&self, disk: &Arc<dyn NetworkDisk>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.disk), Arc::as_ptr(disk))
    }
}

/// The disks with sources.
pub(crate) struct AttachedNetworkDisks {
    disks: Vec<AttachedDisk>,
    /// The sockets of all of them, behind one descriptor.
    sockets: LazyEngine<Rc<SocketSet>>,
}

impl AttachedNetworkDisks {
    pub fn new() -> Self {
        AttachedNetworkDisks {
            disks: Vec::new(),
            sockets: LazyEngine::Unmade,
        }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    /// Counts one more source, and returns the queue.
    pub fn add_source(
        &mut self,
        disk: &Arc<dyn NetworkDisk>,
        wake: &Wake,
        watch: Watch<'_>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>> {
        disk.add_source();
        if let Some(attached) = self.disks.iter_mut().find(|attached| attached.is(disk)) {
            attached.sources += 1;
            return attached.queue.clone();
        }
        let sockets = match disk.uses_sockets() {
            true => self.make_sockets(watch),
            false => None,
        };
        let queue = disk.clone().new_queue(wake, sockets);
        self.disks.push(AttachedDisk {
            disk: disk.clone(),
            sources: 1,
            queue: queue.clone(),
        });
        queue
    }

    /// The set of sockets, which the loop watches.
    fn make_sockets(&mut self, watch: Watch<'_>) -> Option<Rc<SocketSet>> {
        let make = || {
            SocketSet::new()
                .map(Rc::new)
                .map_err(|error| error.to_string())
        };
        let watch = |sockets: &Rc<SocketSet>| -> io::Result<()> { watch(sockets.as_fd()) };
        let without = "no epoll for sockets: they are checked every millisecond";
        self.sockets.make_and_watch_once(make, watch, without);
        self.sockets.get().cloned()
    }

    /// Forgets the set of sockets, which is no longer watched, unless a disk uses it; true if it is not used.
    pub fn forget_sockets_if_unused(&mut self) -> bool {
        let is_used = self
            .disks
            .iter()
            .any(|attached| attached.disk.uses_sockets());
        if !is_used {
            self.sockets = LazyEngine::Unmade;
        }
        !is_used
    }

    /// Counts one source less. The last one removes the disk and its queue, which has no requests in flight.
    pub fn remove_source(&mut self, disk: &Arc<dyn NetworkDisk>) {
        disk.remove_source();
        self.disks.retain_mut(|attached| {
            if attached.is(disk) {
                attached.sources -= 1;
            }
            attached.sources > 0
        });
    }

    /// The queues, to be changed.
    fn for_each(&self, mut change: impl FnMut(&mut NetworkQueueWithTaskShare)) {
        for attached in &self.disks {
            change(&mut attached.queue.borrow_mut());
        }
    }

    /// Whether something is so of any queue.
    #[inline]
    fn any(&self, is_so: impl Fn(&dyn NetworkQueue) -> bool) -> bool {
        self.disks
            .iter()
            .any(|attached| is_so(&attached.queue.borrow().queue))
    }

    /// The submit phase of all queues.
    #[inline]
    pub fn submit(&mut self) {
        self.for_each(|wrapper| wrapper.queue.submit());
    }

    /// Appends the completions of all queues to `out`.
    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        self.for_each(|wrapper| wrapper.queue.reap(out));
    }

    /// After the reap phase: reserves room for tasks that were refused before.
    pub fn reserve_room_for_refused_tasks(&mut self) {
        self.for_each(NetworkQueueWithTaskShare::reserve_room_for_refused_tasks);
    }

    /// Before the requests of tasks are submitted.
    pub fn release_room_reserved_for_tasks(&mut self) {
        self.for_each(NetworkQueueWithTaskShare::release_room_reserved_for_tasks);
    }

    /// Whether [`reap`](Self::reap) may find something; without a system call.
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.any(|queue| queue.has_completions())
    }

    /// Notes that the descriptor of the sockets, or another one, was ready.
    pub fn note_event(&mut self) {
        self.for_each(|wrapper| wrapper.queue.note_event());
    }

    /// Whether the loop has to iterate once more before it blocks.
    pub fn must_run_before_blocking(&self) -> bool {
        self.any(|queue| queue.must_run_before_blocking())
    }

    /// Whether the loop has to retry after a moment.
    pub fn needs_retry(&self) -> bool {
        self.any(|queue| queue.needs_retry())
    }

    /// The time at which the next request completes by the clock alone.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let deadlines = self.disks.iter();
        let deadlines =
            deadlines.filter_map(|attached| attached.queue.borrow().queue.next_deadline_ns());
        deadlines.min()
    }

    /// Bounds the waits of a source that is about to end.
    pub fn end_unbounded_waits(&mut self, source_index: u32) {
        self.for_each(|wrapper| wrapper.queue.end_unbounded_waits(source_index));
    }

    /// Notes that a source has ended.
    pub fn forget_ended_source(&mut self, source_index: u32) {
        self.for_each(|wrapper| wrapper.queue.forget_ended_source(source_index));
    }
}
