//! The filter *copy before write* in front of a disk that is copied: before a guest changes a cluster for the first time since the
//! moment of the copy, the cluster is read. It is written to the target while the guest's write is carried out.
//!
//! Before the moment each write locks its range until it has ended, so that no copy begins in the middle of one. Afterwards a
//! range is locked only while it is copied.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use engine::{Errno, Op, Request};
use telemetry::counters::TickClock;

use super::{BlockCopy, COPY_CLUSTER_BYTES, CopyRoutes, MAX_COPY_PIECE_BYTES, copy_pending};
use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{Filter, OpHandler, Route};

/// The filter on the route of one source.
struct CopyBeforeWrite {
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
    let filter: Rc<dyn Filter> = Rc::new(CopyBeforeWrite { copy, routes });
    Route {
        storage,
        ..below.with_changes_by(|| OpHandler::Filtered(filter.clone()))
    }
}

impl Filter for CopyBeforeWrite {
    fn lets_pass(&self, request: &Request) -> bool {
        let range = self.copy.clusters_of(request.offset, request.len);
        self.copy.moment.has_come() && !self.copy.must_copy_before_write(&range)
    }

    fn below(&self) -> &Route {
        &self.routes.source
    }
}

impl TaskNode for CopyBeforeWrite {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        let range = self.copy.clusters_of(request.offset, request.len);
        let below = self.routes.source.needed_buffer_bytes(request);
        match self.copy.must_copy_before_write(&range) {
            // It may copy more, up to there.
            true => {
                let end = range.end.next_multiple_of(COPY_CLUSTER_BYTES);
                below + self.routes.needed_buffer_bytes(&(range.start..end))
            }
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
            if !self.copy.must_copy_before_write(&range) {
                return cx.run_on_route(&self.routes.source, request).await;
            }
            let clock = TickClock::of_process();
            let began = clock.now();
            let is_read = Cell::new(false);
            let copy = self.copy_before_write(&cx, self.with_sequel(range), &is_read);
            let write = cx.run_on_route(&self.routes.source, request);
            let written = join_when(|| is_read.get(), copy, write).await;
            // Discards are none of the requests that the copier compares.
            if written.is_ok() && request.op != Op::Discard {
                let took = clock.now().saturating_sub(began);
                self.copy.count_copying_write(took);
            }
            written
        })
    }
}

impl CopyBeforeWrite {
    /// Copies what is pending in a range. A long range is not locked as a whole: others would wait for all of its copies.
    /// `is_read` is set when the range may be changed.
    async fn copy_before_write(&self, cx: &TaskContext, range: Range<u64>, is_read: &Cell<bool>) {
        let (mut from, mut buffer) = (range.start, None);
        while self.copy.must_copy_before_write(&(from..range.end)) {
            let piece = from..range.end.min(from + MAX_COPY_PIECE_BYTES);
            from = piece.end;
            let _locked = self.copy.lock_range_counting_waits(piece.clone()).await;
            if !self.copy.must_copy_before_write(&piece) {
                continue;
            }
            let on_read = || is_read.set(piece.end == range.end && !self.copy.is_of_changes);
            let copied = copy_pending(
                cx,
                &self.copy,
                &self.routes,
                piece.clone(),
                &mut buffer,
                on_read,
            )
            .await;
            if let Err(failure) = copied {
                self.copy.fail_write_copy(failure);
            }
        }
        if let Some(buffer) = buffer {
            // SAFETY: `copy_pending` has waited for its requests.
            unsafe { cx.return_buffer(buffer) };
        }
        is_read.set(true);
    }

    /// A range that is written, and behind it as much again as is copied just before it: guests often write in sequence.
    fn with_sequel(&self, range: Range<u64>) -> Range<u64> {
        let mut len = self.copy.done.granularity();
        let is_copied = |len: u64| {
            range.start >= len
                && self
                    .copy
                    .next_pending(range.start - len..range.start)
                    .is_none()
        };
        if !is_copied(len) {
            return range;
        }
        while len < COPY_CLUSTER_BYTES && is_copied(len * 2) {
            len *= 2;
        }
        let cluster_end = range.end.next_multiple_of(COPY_CLUSTER_BYTES);
        range.start..(range.end + len).min(cluster_end).min(self.copy.size())
    }
}

/// Runs a copy, and a write as soon as it may begin. Both have ended then.
async fn join_when(
    may_write: impl Fn() -> bool,
    copy: impl Future<Output = ()>,
    write: impl Future<Output = Result<(), Errno>>,
) -> Result<(), Errno> {
    let (mut copy, mut write) = (pin!(copy), pin!(write));
    let (mut is_copied, mut written) = (false, None);
    poll_fn(|cx| {
        is_copied = is_copied || copy.as_mut().poll(cx).is_ready();
        if written.is_none()
            && may_write()
            && let Poll::Ready(result) = write.as_mut().poll(cx)
        {
            written = Some(result);
        }
        match (is_copied, written) {
            (true, Some(written)) => Poll::Ready(written),
            _ => Poll::Pending,
        }
    })
    .await
}
