//! `TaskContext`: an async task's way to other nodes' routes, backends, workers, gates, buffers and timers.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use engine::{Errno, Op, Request};

use super::buffers::TaskBuffer;
use super::io::{BackendRequest, RingRequest};
use super::io_future::IoFuture;
use super::shared::ExecutorShared;
use super::timers::TimerKey;
use crate::clock::now_ns;
use crate::disk_file::clone::CloneRange;
use crate::lease::Lease;
use crate::network::NetworkTarget;
use crate::null_disk::fill_with_zeroes;
use crate::route::{FileTarget, LookupResult, OpHandler, Route};
use crate::token;

/// The interface of one async task to its iothread.
#[derive(Clone)]
pub(crate) struct TaskContext {
    pub(super) shared: Rc<ExecutorShared>,
    /// The token of its source's request.
    pub(super) source_token: u64,
}

impl TaskContext {
    /// Carries out a request on the route of another node: waits at its gates, sets its marks, and waits for the result.
    pub async fn run_on_route(&self, route: &Route, request: Request) -> Result<(), Errno> {
        match self.wait_at_gates_and_add_marks(route, request).await {
            OpHandler::Gated(_) | OpHandler::Marked(_) => {
                unreachable!("`wait_at_gates_and_add_marks` returns the handler behind these")
            }
            OpHandler::Nothing => Ok(()),
            OpHandler::Null(null) => {
                // SAFETY: the source of the request keeps its segments until the task has completed.
                unsafe { null.zero_read_buffers_if_set(&request) };
                if null.latency_ns > 0 {
                    self.sleep_ns(null.latency_ns).await;
                }
                Ok(())
            }
            OpHandler::File(target) => self.run_on_target(target, request).await,
            OpHandler::Network(target) => self.run_on_network_disk(target, request).await,
            OpHandler::Lookup(node) => match node.lookup(&request) {
                Some(LookupResult::At(offset, lease)) => {
                    let request = Request { offset, ..request };
                    self.run_with_lease(node.target(), request, Some(lease))
                        .await
                }
                Some(LookupResult::Zeroes) => {
                    // SAFETY: as above.
                    unsafe { fill_with_zeroes(request.iov, request.iov_count) };
                    Ok(())
                }
                None => node.clone().run(self.clone(), request).await,
            },
            OpHandler::Filtered(filter) => filter.clone().run(self.clone(), request).await,
            OpHandler::Task(node) => node.clone().run(self.clone(), request).await,
        }
    }

    /// Waits at the gates of a request's route, and adds its marks to the task. Returns the handler behind gates, marks and filters
    /// that let it pass.
    pub async fn wait_at_gates_and_add_marks<'a>(
        &self,
        route: &'a Route,
        request: Request,
    ) -> &'a OpHandler {
        let mut handler = route.handler(request.op);
        loop {
            let below = match handler {
                OpHandler::Gated(gated) => {
                    if !gated.try_pass(&request) {
                        gated.wait_to_pass_or_bypass(self, request).await;
                    }
                    &gated.below
                }
                OpHandler::Marked(marked) => {
                    let task = self.shared.current.get();
                    let mark = marked.make_pending_mark(&request);
                    self.shared.io.borrow_mut().add_pending_mark(task, mark);
                    &marked.below
                }
                OpHandler::Filtered(filter) if filter.lets_pass(&request) => filter.below(),
                other => return other,
            };
            handler = below.handler(request.op);
        }
    }

    /// Submits a request to the backend that carries the file. Its memory stays valid until the task is complete.
    pub async fn run_on_target(&self, target: &FileTarget, request: Request) -> Result<(), Errno> {
        self.run_with_lease(target, request, None).await
    }

    /// Submits a request to a target, with a lease on its place there that lasts until it has completed.
    async fn run_with_lease(
        &self,
        target: &FileTarget,
        request: Request,
        lease: Option<Lease>,
    ) -> Result<(), Errno> {
        let target = target.clone();
        let outgoing = |request| BackendRequest::Request(target, request);
        // SAFETY: the source that the request is from, or the task that made it, keeps its segments while this is awaited.
        unsafe { IoFuture::queue_request(&self.shared, request, lease, outgoing) }.await
    }

    /// Submits a request to the queue of a disk behind a network. Its memory stays valid until the task is complete.
    async fn run_on_network_disk(
        &self,
        target: &NetworkTarget,
        request: Request,
    ) -> Result<(), Errno> {
        let target = target.clone();
        let outgoing = |request| BackendRequest::Network(target, request, self.source_index());
        // SAFETY: the source that the request is from, or the task that made it, keeps its segments while this is awaited.
        unsafe { IoFuture::queue_request(&self.shared, request, None, outgoing) }.await
    }

    /// Submits a request without data to the ring.
    pub async fn run_on_ring(&self, mut ring: RingRequest) -> Result<(), Errno> {
        let request = ring.request;
        let outgoing = |request| {
            ring.request = request;
            BackendRequest::Ring(ring)
        };
        // SAFETY: there are no segments.
        unsafe { IoFuture::queue_request(&self.shared, request, None, outgoing) }.await
    }

    /// Submits a request to a worker, which may block. Its memory stays valid until the task is complete.
    pub async fn run_on_worker(&self, target: &FileTarget, request: Request) -> Result<(), Errno> {
        let (file, request) = (target.file.clone(), target.to_file_request(&request));
        let outgoing = |request| BackendRequest::Worker(file, request);
        // SAFETY: the source that the request is from, or the task that made it, keeps its segments while this is awaited.
        unsafe { IoFuture::queue_request(&self.shared, request, None, outgoing) }.await
    }

    /// Has a worker clone a range, which may block.
    pub async fn clone_on_worker(&self, range: CloneRange) -> Result<(), Errno> {
        let outgoing = |request: Request| BackendRequest::Clone(range, request.token);
        let without_data = Request::without_data(Op::Write, 0, 0, 0);
        // SAFETY: there are no segments.
        unsafe { IoFuture::queue_request(&self.shared, without_data, None, outgoing) }.await
    }

    /// A buffer of the running task, out of the [bytes that the node needs](super::TaskNode::needed_buffer_bytes).
    pub fn take_buffer(&self, len: usize) -> TaskBuffer {
        let task = self.shared.current.get();
        self.shared
            .buffers
            .borrow_mut()
            .allocate_reserved(task, len)
    }

    /// Returns a buffer to the memory that the running task has reserved, which nodes below may need once for each part of a request.
    ///
    /// # Safety
    /// No request that uses the buffer is in flight.
    pub unsafe fn return_buffer(&self, buffer: TaskBuffer) {
        let task = self.shared.current.get();
        self.shared.buffers.borrow_mut().free(task, &buffer);
    }

    /// Waits so many nanoseconds.
    pub fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()> + use<> {
        Sleep {
            shared: self.shared.clone(),
            deadline_ns: now_ns().saturating_add(ns),
            timer: None,
        }
    }

    /// The index of its source.
    fn source_index(&self) -> u32 {
        token::source_index(self.source_token)
    }

    /// Whether the source of the request is about to end: then the task must not wait for anything that may take for ever.
    pub fn is_stopping(&self) -> bool {
        self.shared.stopping.borrow().contains(&self.source_index())
    }

    /// Whether its request bypasses gates, because its source waits for it.
    pub fn may_bypass_gates(&self) -> bool {
        let bypassing = self.shared.bypassing.borrow();
        let of_source = bypassing.get(&self.source_index());
        of_source.is_some_and(|numbers| numbers.contains(&token::request_number(self.source_token)))
    }

    /// Waits for a future, or until the source of the request is about to end.
    pub async fn wait_unless_stopping(&self, future: impl Future<Output = ()>) {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| {
            if self.is_stopping() {
                return Poll::Ready(());
            }
            future.as_mut().poll(cx)
        })
        .await;
    }
}

/// The future of [`TaskContext::sleep_ns`].
struct Sleep {
    shared: Rc<ExecutorShared>,
    deadline_ns: u64,
    timer: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    /// Adds a timer at the first poll, unless the deadline has passed.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now_ns() >= self.deadline_ns {
            return Poll::Ready(());
        }
        if self.timer.is_none() {
            let waker = cx.waker().clone();
            let timer = self.shared.timers.borrow_mut().add(self.deadline_ns, waker);
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.shared.timers.borrow_mut().remove(timer);
        }
    }
}
