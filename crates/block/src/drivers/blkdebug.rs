//! Driver `blkdebug`: a filter that lets some requests fail, wait, or transfer less than they should.

use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use crate::faults::{FaultDecision, FaultDelay, Faults, OutcomeAfterDelay};
use crate::node::AttachContext;
use crate::node::Driver;
use crate::node::Node;
use crate::route::part::segments_of_part;
use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};
use engine::{Op, Request};

/// The driver of a filter node.
pub(crate) struct BlkdebugFilter {
    pub below: Arc<Node>,
    pub faults: Arc<Faults>,
}

impl Driver for BlkdebugFilter {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, 0))
    }

    fn faults(&self) -> Option<&Arc<Faults>> {
        Some(&self.faults)
    }

    /// Makes the route below, and an async task in front of all its operations.
    fn attach_route(&self, node: &Node, cx: &mut AttachContext<'_>) -> Route {
        let below = cx.attach_route(&self.below);
        let (storage, disk) = (below.storage.clone(), below.disk.clone());
        let task: Rc<dyn TaskNode> = Rc::new(BlkdebugTask {
            below,
            faults: self.faults.clone(),
            unmap: node.passes_discards(),
        });
        let handler = || OpHandler::Task(task.clone());
        Route {
            read: handler(),
            write: handler(),
            zeroes: handler(),
            discard: if node.passes_discards() {
                handler()
            } else {
                OpHandler::Nothing
            },
            flush: handler(),
            storage,
            merging_helps: false,
            disk,
        }
    }
}

/// The async task of a filter, on the route of one source.
struct BlkdebugTask {
    below: Route,
    faults: Arc<Faults>,
    unmap: bool,
}

impl TaskNode for BlkdebugTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        self.below.needed_buffer_bytes(request)
    }

    /// Decides the faults of a request, waits as they say, and then carries out the request, a part of it, or nothing.
    fn run(
        self: Rc<Self>,
        cx: TaskContext,
        mut request: Request,
    ) -> LocalFuture<Result<(), Errno>> {
        if let Op::WriteZeroes { unmap } = &mut request.op {
            *unmap &= self.unmap;
        }
        // Outside of the future, so that the rules see requests in the order in which they are admitted.
        let FaultDecision {
            delay,
            outcome,
            release_count,
        } = self.faults.decide_and_update_rules(&request);
        Box::pin(async move {
            match delay {
                FaultDelay::For(0) => {}
                FaultDelay::For(ns) => cx.wait_unless_stopping(cx.sleep_ns(ns)).await,
                FaultDelay::UntilReleased => {
                    cx.wait_unless_stopping(self.faults.wait_until_released(release_count))
                        .await
                }
            }
            match outcome {
                OutcomeAfterDelay::Pass => cx.run_on_route(&self.below, request).await,
                OutcomeAfterDelay::Fail(errno) => Err(errno),
                OutcomeAfterDelay::Partial(bytes, result) => {
                    let len = bytes.min(request.len);
                    if len > 0 {
                        let bytes = request.offset..request.offset + len;
                        // SAFETY: the source keeps the segments until the task is complete.
                        let mut segments = unsafe { segments_of_part(&request, bytes) };
                        let part = Request {
                            len,
                            iov: segments.as_mut_ptr(),
                            iov_count: u32::try_from(segments.len()).unwrap_or(u32::MAX),
                            ..request
                        };
                        cx.run_on_route(&self.below, part).await?;
                    }
                    result
                }
            }
        })
    }
}
