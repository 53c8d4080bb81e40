//! The future of a request that an async task has sent to a backend.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use engine::{Errno, Request};

use super::io::BackendRequest;
use super::shared::ExecutorShared;
use crate::lease::Lease;

/// The future of one request.
pub(super) struct IoFuture {
    shared: Rc<ExecutorShared>,
    index: u32,
}

impl IoFuture {
    /// Puts a request of the running task into the outbox, as [`IoTable::queue_request`](super::io::IoTable::queue_request) does.
    ///
    /// # Safety
    /// The list of segments has `iov_count` entries.
    pub unsafe fn queue_request(
        shared: &Rc<ExecutorShared>,
        request: Request,
        lease: Option<Lease>,
        outgoing: impl FnOnce(Request) -> BackendRequest,
    ) -> Self {
        let task = shared.current.get();
        let mut io = shared.io.borrow_mut();
        // SAFETY: our caller's promise.
        let index = unsafe { io.queue_request(task, request, lease, outgoing) };
        drop(io);
        IoFuture {
            shared: shared.clone(),
            index,
        }
    }
}

impl Future for IoFuture {
    type Output = Result<(), Errno>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.shared.io.borrow_mut().poll_result(self.index, cx)
    }
}

impl Drop for IoFuture {
    /// Frees the entry of the request, now or when the request completes.
    fn drop(&mut self) {
        self.shared.io.borrow_mut().free_or_abandon(self.index);
    }
}
