//! The filter that writes to both disks of a mirror. A guest may change its buffer meanwhile, so both get the data from one
//! private copy.

use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Op, Request};

use super::{BlockCopy, MirrorMode, Phase};
use crate::copy::{CopyRoutes, MAX_COPY_PIECE_BYTES};
use crate::disk_file::transfer::Segments;
use crate::route::task::{LocalFuture, TaskBuffer, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};

/// The filter on the route of one source.
struct MirrorTask {
    copy: Arc<BlockCopy>,
    routes: CopyRoutes,
}

/// The route with the filter. It keeps the target attached.
pub(crate) fn add_mirror_filter(
    copy: Arc<BlockCopy>,
    mode: MirrorMode,
    below: Route,
    target: Route,
) -> Route {
    let mut storage = below.storage.clone();
    storage.extend(target.storage.iter().cloned());
    let routes = CopyRoutes {
        source: below.clone(),
        target,
    };
    let task: Rc<dyn TaskNode> = Rc::new(MirrorTask { copy, routes });
    let handler = || OpHandler::Task(task.clone());
    let (read, flush) = match mode {
        MirrorMode::Finish => (handler(), handler()),
        _ => (below.read, below.flush),
    };
    Route {
        read,
        write: handler(),
        zeroes: handler(),
        discard: match below.discard {
            OpHandler::Nothing => OpHandler::Nothing,
            _ => handler(),
        },
        flush,
        storage,
        merging_helps: below.merging_helps,
        disk: below.disk,
    }
}

impl TaskNode for MirrorTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        let below = |request: &Request| {
            self.routes.source.needed_buffer_bytes(request)
                + self.routes.target.needed_buffer_bytes(request)
        };
        match request.op {
            Op::Write => below(request) + CopyRoutes::buffer_bytes(request.len),
            Op::Discard => below(request) + below(&to_zeroes(request)),
            _ => below(request),
        }
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            // Read once: a write that has begun on both disks ends on both.
            match (self.copy.phase(), request.op) {
                (Phase::Target, _) => cx.run_on_route(&self.routes.target, request).await,
                (Phase::Source, _) => cx.run_on_route(&self.routes.source, request).await,
                (_, Op::Read) => self.read(&cx, request).await,
                (_, Op::Flush) => self.flush_both(&cx, request).await,
                (_, Op::Write) => self.write_both(&cx, request).await,
                (_, Op::WriteZeroes { .. } | Op::Discard) => {
                    self.change_both_in_pieces(&cx, request).await
                }
            }
        })
    }
}

impl MirrorTask {
    /// Reads from the source, or from the target if the source fails when guests use the target alone already.
    async fn read(&self, cx: &TaskContext, request: Request) -> Result<(), Errno> {
        match cx.run_on_route(&self.routes.source, request).await {
            Err(_) if self.copy.has_switched_over() => {
                cx.run_on_route(&self.routes.target, request).await
            }
            read => read,
        }
    }

    /// Writes the data to both disks, in pieces.
    async fn write_both(&self, cx: &TaskContext, request: Request) -> Result<(), Errno> {
        let buffer = cx.take_buffer(CopyRoutes::buffer_bytes(request.len));
        // SAFETY: the source of the request keeps the list in place until the task is complete.
        let list = (0..request.iov_count as usize).map(|index| unsafe { *request.iov.add(index) });
        let mut list: Vec<libc::iovec> = list.collect();
        // SAFETY: likewise the memory.
        let mut data = unsafe { Segments::new(&mut list) };
        let (mut at, mut written) = (0, Ok(()));
        while at < request.len && written.is_ok() {
            let len = MAX_COPY_PIECE_BYTES.min(request.len - at);
            let mut segment = take_private_copy(&mut data, &buffer, len);
            let piece = Request {
                offset: request.offset + at,
                len,
                iov: &raw mut segment,
                iov_count: 1,
                ..request
            };
            written = self.change_both(cx, piece).await;
            at += len;
        }
        // SAFETY: all requests with it have ended.
        unsafe { cx.return_buffer(buffer) };
        written
    }

    /// Carries out a request without data, which may be long: others would wait for all of it.
    async fn change_both_in_pieces(&self, cx: &TaskContext, request: Request) -> Result<(), Errno> {
        let end = request.offset + request.len;
        let mut offset = request.offset;
        while offset < end {
            let piece_end = end.min((offset / MAX_COPY_PIECE_BYTES + 1) * MAX_COPY_PIECE_BYTES);
            let len = piece_end - offset;
            let piece = Request {
                offset,
                len,
                ..request
            };
            self.change_both(cx, piece).await?;
            offset = piece_end;
        }
        Ok(())
    }

    /// Carries out a request that changes a range on both disks, the source first. The target gets zeroes for a discard.
    async fn change_both(&self, cx: &TaskContext, request: Request) -> Result<(), Errno> {
        let range = self.copy.clusters_of(request.offset, request.len);
        let _locked = self.copy.lock_range_counting_waits(range.clone()).await;
        let is_pending = self.copy.is_pending(&range);
        if let Err(errno) = cx.run_on_route(&self.routes.source, request).await {
            self.copy.on_failed_source_write(range.clone(), errno)?;
        }
        if is_pending {
            return Ok(());
        }
        self.copy.note_write_to_target(&range);
        let request = match request.op {
            Op::Discard => to_zeroes(&request),
            _ => request,
        };
        match cx.run_on_route(&self.routes.target, request).await {
            Ok(()) => Ok(()),
            Err(errno) => self.copy.on_failed_target_write(range, errno),
        }
    }

    /// Flushes both disks, so that what is stable for the guest stays so after a switch-over.
    async fn flush_both(&self, cx: &TaskContext, request: Request) -> Result<(), Errno> {
        let flushed = cx.run_on_route(&self.routes.source, request).await;
        if flushed.is_err() && !self.copy.has_switched_over() {
            return flushed;
        }
        match cx.run_on_route(&self.routes.target, request).await {
            Ok(()) => Ok(()),
            Err(errno) => self.copy.on_failed_target_flush(errno),
        }
    }
}

/// The zeroes that the target gets for a discard.
fn to_zeroes(discard: &Request) -> Request {
    Request {
        op: Op::WriteZeroes { unmap: true },
        ..*discard
    }
}

/// Copies the next bytes of a guest's data to the buffer, and returns the buffer's segment.
fn take_private_copy(data: &mut Segments<'_>, buffer: &TaskBuffer, len: u64) -> libc::iovec {
    let segment = buffer.segment_of_first(len);
    // SAFETY: the buffer is the task's, and no request uses it now.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(segment.iov_base.cast::<u8>(), segment.iov_len) };
    data.copy_to_slice_and_advance(bytes);
    segment
}
