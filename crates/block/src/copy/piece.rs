//! Copying of the parts of a locked range that are still to be copied, piece by piece through a buffer.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Op, Request};

use super::{BlockCopy, CopyFailure, CopySide, MAX_COPY_PIECE_BYTES};
use crate::route::task::{TaskBuffer, TaskContext, TaskNode};
use crate::route::zero_detection::is_zero;
use crate::route::{AttachedStorage, OpHandler, Route};

/// The routes to both disks of a copy, on one iothread.
pub(crate) struct CopyRoutes {
    pub source: Route,
    pub target: Route,
}

impl CopyRoutes {
    /// The storage of both disks, for a route that leads to them.
    pub fn storage(&self) -> Vec<AttachedStorage> {
        let both = [&self.source, &self.target];
        both.into_iter()
            .flat_map(|route| route.storage.clone())
            .collect()
    }

    /// The route of a node whose task, which carries out all requests, uses both.
    pub fn into_route_of_task<T: TaskNode + 'static>(self, task: impl FnOnce(Self) -> T) -> Route {
        let (storage, disk) = (self.storage(), self.source.disk.clone());
        let merging_helps = self.source.merging_helps;
        let task: Rc<dyn TaskNode> = Rc::new(task(self));
        let handler = || OpHandler::Task(task.clone());
        Route {
            read: handler(),
            write: handler(),
            zeroes: handler(),
            discard: handler(),
            flush: handler(),
            storage,
            merging_helps,
            disk,
        }
    }

    /// Bytes of the buffer for a copy of so many bytes.
    pub fn buffer_bytes(len: u64) -> usize {
        usize::try_from(len.min(MAX_COPY_PIECE_BYTES)).unwrap_or(usize::MAX)
    }

    /// Bytes of memory that a task needs to copy a range, for this and the nodes below. These return what they have needed for a piece.
    pub fn needed_buffer_bytes(&self, range: &Range<u64>) -> usize {
        let len = range.end - range.start;
        let request = |op| Request::without_data(op, range.start, len, 0);
        Self::buffer_bytes(len)
            + self.source.needed_buffer_bytes(&request(Op::Read))
            + self.target.needed_buffer_bytes(&request(Op::Write))
    }
}

/// Copies what is pending in a range, which is locked. The task has reserved
/// [`CopyRoutes::needed_buffer_bytes`]; `buffer` is for all ranges that it copies, of which none is longer than the first.
/// `on_read` is called when all of it has been read.
pub(crate) async fn copy_pending(
    cx: &TaskContext,
    copy: &Arc<BlockCopy>,
    routes: &CopyRoutes,
    range: Range<u64>,
    buffer: &mut Option<TaskBuffer>,
    on_read: impl Fn(),
) -> Result<(), CopyFailure> {
    let mut from = range.start;
    while let Some(piece) = copy.begin_next_piece(from..range.end, MAX_COPY_PIECE_BYTES) {
        from = piece.end;
        let buffer = buffer.get_or_insert_with(|| {
            cx.take_buffer(CopyRoutes::buffer_bytes(range.end - range.start))
        });
        let on_read = || {
            if copy.next_pending(from..range.end).is_none() {
                on_read();
            }
        };
        let copied = copy_piece(cx, copy, routes, buffer, piece.clone(), on_read).await;
        let copied = copied.and_then(|()| copy.check_target());
        copy.end_piece(piece, copied.is_ok());
        copied?;
    }
    Ok(())
}

/// Reads one piece, and writes it to the target. Zeroes are written as such, so that holes stay holes.
async fn copy_piece(
    cx: &TaskContext,
    copy: &BlockCopy,
    routes: &CopyRoutes,
    buffer: &TaskBuffer,
    piece: Range<u64>,
    on_read: impl FnOnce(),
) -> Result<(), CopyFailure> {
    let len = piece.end - piece.start;
    // Both requests end before this does.
    let mut segment = buffer.segment_of_first(len);
    let mut transfer = |op| Request {
        iov: &raw mut segment,
        iov_count: 1,
        ..Request::without_data(op, piece.start, len, 0)
    };
    let (read, write) = (transfer(Op::Read), transfer(Op::Write));
    let read = cx.run_on_route(&routes.source, read).await;
    read.map_err(|errno| CopySide::Source.failed(errno))?;
    on_read();
    // SAFETY: the memory is the task's, and no request uses it now.
    if unsafe { is_zero(segment.iov_base.cast(), segment.iov_len) } {
        if copy.target_has_zeroes(&piece) {
            return Ok(());
        }
        copy.note_write_to_target(&piece);
        match write_zeroes(cx, routes, piece.clone()).await {
            // A server that has no such operation gets the data.
            Err(failure) if failure.errno == Errno::OPNOTSUPP => {}
            zeroed => return zeroed,
        }
    }
    copy.note_write_to_target(&piece);
    let written = cx.run_on_route(&routes.target, write).await;
    written.map_err(|errno| CopySide::Target.failed(errno))
}

/// Writes zeroes where a range, which is locked, is pending: the source has a hole there.
pub(crate) async fn zero_pending(
    cx: &TaskContext,
    copy: &Arc<BlockCopy>,
    routes: &CopyRoutes,
    range: Range<u64>,
) -> Result<(), CopyFailure> {
    while let Some(pending) = copy.next_pending(range.clone()) {
        write_zeroes(cx, routes, pending.clone()).await?;
        copy.check_target()?;
        copy.mark_done(pending);
    }
    Ok(())
}

async fn write_zeroes(
    cx: &TaskContext,
    routes: &CopyRoutes,
    piece: Range<u64>,
) -> Result<(), CopyFailure> {
    let op = Op::WriteZeroes { unmap: true };
    let zeroes = Request::without_data(op, piece.start, piece.end - piece.start, 0);
    let written = cx.run_on_route(&routes.target, zeroes).await;
    written.map_err(|errno| CopySide::Target.failed(errno))
}

impl CopySide {
    pub(super) fn failed(self, errno: Errno) -> CopyFailure {
        CopyFailure { side: self, errno }
    }
}
