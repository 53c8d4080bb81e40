//! The filter *copy before write* in front of a disk that is copied: before a guest changes a cluster for the first time since the
//! moment of the copy, the cluster is copied.
//!
//! Before the moment each write locks its range until it has ended, so that no copy begins in the middle of one. Afterwards a
//! range is locked only while it is copied.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Request};

use super::{BlockCopy, CopyRoutes, MAX_COPY_PIECE_BYTES, copy_pending};
use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};

/// The filter on the route of one source.
struct CopyBeforeWriteTask {
    copy: Arc<BlockCopy>,
    routes: CopyRoutes,
}

/// The route with the filter in front of all that changes data. It keeps the target attached.
pub(crate) fn add_copy_before_write(copy: Arc<BlockCopy>, below: Route, target: Route) -> Route {
    let routes = CopyRoutes {
        source: below.clone(),
        target,
    };
    let storage = routes.storage();
    let task: Rc<dyn TaskNode> = Rc::new(CopyBeforeWriteTask { copy, routes });
    Route {
        storage,
        ..below.with_changes_by(|| OpHandler::Task(task.clone()))
    }
}

impl TaskNode for CopyBeforeWriteTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        let range = self.copy.clusters_of(request.offset, request.len);
        let below = self.routes.source.needed_buffer_bytes(request);
        match self.copy.must_copy_before_write(&range) {
            true => below + self.routes.needed_buffer_bytes(range.end - range.start),
            // Nothing becomes pending again.
            false => below,
        }
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            let range = self.copy.clusters_of(request.offset, request.len);
            if !self.copy.moment.has_come() {
                let locked = self.copy.lock_range(range.clone()).await;
                // Read with the range locked.
                if !self.copy.moment.has_come() {
                    let written = cx.run_on_route(&self.routes.source, request).await;
                    drop(locked);
                    return written;
                }
            }
            self.copy_before_write(&cx, range).await;
            cx.run_on_route(&self.routes.source, request).await
        })
    }
}

impl CopyBeforeWriteTask {
    /// Copies what is pending in a range. A long range is not locked as a whole: others would wait for all of its copies.
    async fn copy_before_write(&self, cx: &TaskContext, range: Range<u64>) {
        let (mut from, mut buffer) = (range.start, None);
        while self.copy.must_copy_before_write(&(from..range.end)) {
            let piece = from..range.end.min(from + MAX_COPY_PIECE_BYTES);
            from = piece.end;
            let _locked = self.copy.lock_range_counting_waits(piece.clone()).await;
            if !self.copy.must_copy_before_write(&piece) {
                continue;
            }
            let copied = copy_pending(cx, &self.copy, &self.routes, piece, &mut buffer).await;
            if let Err(failure) = copied {
                self.copy.fail_write_copy(failure);
            }
        }
    }
}
