//! The node of a job's copier: its requests are parts of a disk that are to be copied, if they are not copied yet.
//!
//! | request | effect |
//! |---|---|
//! | read (without memory) | copies the range |
//! | write (without memory) | clones the range, or fails if that is not possible: it is pending then |
//! | write zeroes | writes zeroes to the target: the source has a hole there |
//! | discard | counts as copied: source and target have a hole there |
//! | flush | flushes the target |

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Op, Request};

use crate::copy::{BlockCopy, CopyFailure, CopyRoutes, clone_pending, copy_pending, zero_pending};
use crate::node::{AttachContext, Driver, Node};
use crate::route::Route;
use crate::route::task::{LocalFuture, TaskContext, TaskNode};

/// The driver of a copier's node.
pub(crate) struct CopierDriver {
    pub source: Arc<Node>,
    pub target: Arc<Node>,
    pub copy: Arc<BlockCopy>,
}

impl Driver for CopierDriver {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.source, 0))
    }

    /// Attaches both disks; an async task carries out all requests.
    fn attach_route(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
        let source = cx.attach_route(&self.source);
        let target = cx.attach_target(&self.copy, &self.target);
        let routes = CopyRoutes { source, target };
        self.copy.check_routes_for_cloning(&routes);
        let copy = self.copy.clone();
        routes.into_route_of_task(|routes| CopierTask { copy, routes })
    }
}

/// The async task of a copier's requests.
struct CopierTask {
    copy: Arc<BlockCopy>,
    routes: CopyRoutes,
}

impl TaskNode for CopierTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        match request.op {
            Op::Read | Op::WriteZeroes { .. } => {
                let end = request.offset + request.len;
                self.routes.needed_buffer_bytes(&(request.offset..end))
            }
            Op::Write => 0,
            _ => self.routes.target.needed_buffer_bytes(request),
        }
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            if request.op == Op::Flush {
                return cx.run_on_route(&self.routes.target, request).await;
            }
            let range = request.offset..request.offset + request.len;
            let _locked = self.copy.lock_range(range.clone()).await;
            if self.copy.is_over() {
                // A guest may have changed what is pending.
                return Err(Errno::CANCELED);
            }
            if request.op == Op::Write {
                return clone_pending(&cx, &self.copy, &self.routes, range).await;
            }
            let copied = self.copy_locked(&cx, request.op, range).await;
            copied.map_err(|CopyFailure { side, errno }| {
                self.copy.record_failed_side(request.offset, side);
                errno
            })
        })
    }
}

impl CopierTask {
    /// Carries out a request whose range is locked.
    async fn copy_locked(
        &self,
        cx: &TaskContext,
        op: Op,
        range: Range<u64>,
    ) -> Result<(), CopyFailure> {
        match op {
            Op::Read => copy_pending(cx, &self.copy, &self.routes, range, &mut None, || ()).await,
            Op::WriteZeroes { .. } => {
                let zeroed = zero_pending(cx, &self.copy, &self.routes, range.clone()).await;
                match zeroed {
                    Err(failure) if failure.errno == Errno::OPNOTSUPP => {
                        copy_pending(cx, &self.copy, &self.routes, range, &mut None, || ()).await
                    }
                    zeroed => zeroed,
                }
            }
            _ => {
                self.copy.skip_pending(range);
                Ok(())
            }
        }
    }
}
