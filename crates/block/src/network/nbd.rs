//! Exports of NBD servers on an iothread: their queues.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Completion, Full, Request};
use nbd::client::{ClientQueue, Disk, RequestGroup, SocketSet};

use super::{NetworkDisk, NetworkQueue, NetworkQueueWithTaskShare};
use engine::pool::Wake;

impl NetworkDisk for Disk {
    fn new_queue(
        self: Arc<Self>,
        wake: &Wake,
        sockets: Option<Rc<SocketSet>>,
    ) -> Rc<RefCell<NetworkQueueWithTaskShare>> {
        NetworkQueueWithTaskShare::new(ClientQueue::new(self, sockets, wake.clone()))
    }

    fn uses_sockets(&self) -> bool {
        true
    }
}

impl NetworkQueue for ClientQueue {
    fn room(&self) -> usize {
        self.room()
    }

    unsafe fn start(
        &mut self,
        request: &Request,
        source_index: u32,
        group: Option<&Arc<RequestGroup>>,
    ) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        unsafe { self.start(request, source_index, group) }
    }

    fn submit(&mut self) {
        self.submit();
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.reap(out);
    }

    fn has_completions(&self) -> bool {
        self.has_completions()
    }

    fn note_event(&mut self) {
        self.note_event();
    }

    fn must_run_before_blocking(&self) -> bool {
        self.must_run_before_blocking()
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.next_deadline_ns()
    }

    fn needs_retry(&self) -> bool {
        self.needs_retry()
    }

    fn end_unbounded_waits(&mut self, source_index: u32) {
        self.end_unbounded_waits(source_index);
    }

    fn forget_ended_source(&mut self, source_index: u32) {
        self.forget_ended_source(source_index);
    }
}
