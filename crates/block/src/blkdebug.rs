//! Driver `blkdebug`: a node in front of another one, which lets some requests fail, wait, or do less than they say.

use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use crate::faults::{FaultOutcome, Faults, Hold, Verdict};
use crate::node::Node;
use crate::request::{Op, Request};
use crate::route::Route;
use crate::task::{LocalFuture, TaskContext, TaskNode};

/// What stands behind a filter node.
pub(crate) struct Filter {
    pub below: Arc<Node>,
    pub faults: Arc<Faults>,
}

/// The filter on the route of one source.
pub(crate) struct FilterTask {
    pub below: Route,
    pub faults: Arc<Faults>,
    /// Where the window onto the filter begins, in bytes.
    pub base: u64,
    pub unmap: bool,
}

impl TaskNode for FilterTask {
    fn run(
        self: Rc<Self>,
        cx: TaskContext,
        mut request: Request,
    ) -> LocalFuture<Result<(), Errno>> {
        request.offset += self.base;
        if let Op::WriteZeroes { unmap } = &mut request.op {
            *unmap &= self.unmap;
        }
        // Here, so that the rules meet requests in the order in which they are admitted.
        let verdict = match request.op {
            Op::Discard if !self.unmap => None,
            _ => Some(self.faults.judge(&request)),
        };
        Box::pin(async move {
            let Some(Verdict {
                hold,
                outcome,
                edition,
            }) = verdict
            else {
                return Ok(());
            };
            match hold {
                Hold::For(0) => {}
                Hold::For(ns) => cx.unless_stopping(cx.sleep_ns(ns)).await,
                Hold::UntilReleased => cx.unless_stopping(self.faults.released(edition)).await,
            }
            match outcome {
                FaultOutcome::Carry => cx.child(&self.below, request).await,
                FaultOutcome::Fail(errno) => Err(errno),
                FaultOutcome::Part(bytes, result) => {
                    let len = bytes.min(request.len);
                    // Filters below are not asked about what this one cuts short.
                    if let (Some(disk), 1..) = (&self.below.disk, len) {
                        let part = Request { len, ..request };
                        cx.offload(disk, part).await?;
                    }
                    result
                }
            }
        })
    }
}
