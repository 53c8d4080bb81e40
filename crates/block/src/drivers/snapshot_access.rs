//! Driver `snapshot-access`: the snapshot of a disk at the moment of a backup that copies only what guests change (`sync=none`).
//!
//! What the backup has copied is read from its target, and the rest from the disk, with its range locked: a guest that is about to
//! overwrite it waits for the lock, to copy it before. When the backup is over, guests no longer copy, and reads fail.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Op, Request};

use crate::copy::{BlockCopy, CopyRoutes, MAX_COPY_PIECE_BYTES};
use crate::disk_file::allocation::Allocation;
use crate::node::{AttachContext, Driver, Node};
use crate::route::part::segments_of_part;
use crate::route::task::{LocalFuture, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};

/// The error of reads of a snapshot whose backup is over, or may have lost old data. No disk has it, so that a report can tell the
/// difference; clients see an I/O error.
pub const SNAPSHOT_OVER: Errno = Errno::IDRM;

/// The driver of a snapshot.
pub(crate) struct SnapshotAccess {
    pub disk: Arc<Node>,
    pub target: Arc<Node>,
    pub copy: Arc<BlockCopy>,
}

impl Driver for SnapshotAccess {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.disk, 0))
    }

    fn snapshot_target(&self) -> Option<&Arc<Node>> {
        Some(&self.target)
    }

    /// Those of the disk, and what the backup has copied. The disk is queried before: a hole that a guest has made since the snapshot
    /// is in what was copied.
    fn allocations(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> Result<Option<Vec<Allocation>>, Errno> {
        let mut of_disk = self.disk.allocations(offset, len, most)?;
        Allocation::cut(&mut of_disk, len);
        if self.copy.is_over() {
            return Err(Errno::IO);
        }
        let (mut pieces, mut at) = (Vec::new(), offset);
        for piece in of_disk {
            let end = at + piece.len;
            while at < end && pieces.len() < most {
                // What is data on the disk is data in the snapshot too, wherever it is read from.
                let (part_end, allocated) = match piece.allocated {
                    true => (end, true),
                    false => {
                        let part = self.copy.leading_part(at..end);
                        (part.end, part.is_copied)
                    }
                };
                pieces.push(Allocation {
                    len: part_end - at,
                    allocated,
                });
                at = part_end;
            }
        }
        Ok(Some(pieces))
    }

    /// Attaches both disks; an async task carries out reads.
    fn attach_route(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
        let (source, target) = (cx.attach_route(&self.disk), cx.attach_route(&self.target));
        let (routes, copy) = (CopyRoutes { source, target }, self.copy.clone());
        Route {
            discard: OpHandler::Nothing,
            flush: OpHandler::Nothing,
            ..routes.into_route_of_task(|routes| SnapshotTask { copy, routes })
        }
    }
}

/// The async task of requests to a snapshot.
struct SnapshotTask {
    copy: Arc<BlockCopy>,
    routes: CopyRoutes,
}

impl TaskNode for SnapshotTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        let CopyRoutes { source, target } = &self.routes;
        source
            .needed_buffer_bytes(request)
            .max(target.needed_buffer_bytes(request))
    }

    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            if request.op != Op::Read {
                return Err(Errno::ROFS);
            }
            let (mut from, end) = (request.offset, request.offset + request.len);
            while from < end {
                let piece = from..end.min(from + MAX_COPY_PIECE_BYTES);
                from = self.read_beginning(&cx, &request, piece).await?;
            }
            Ok(())
        })
    }
}

impl SnapshotTask {
    /// Reads the beginning of a part of what a request asks for, as far as it is on one of both disks, and returns where that ends.
    async fn read_beginning(
        &self,
        cx: &TaskContext,
        request: &Request,
        bytes: Range<u64>,
    ) -> Result<u64, Errno> {
        let from = bytes.start;
        let part = self.copy.leading_part(bytes);
        // What is copied stays so.
        if part.is_copied {
            self.read_from(&self.routes.target, cx, request, from..part.end)
                .await?;
            return Ok(part.end);
        }
        let clusters = self.copy.clusters_of(from, part.end - from);
        let _locked = self.copy.lock_range(clusters).await;
        // A guest may have had it copied meanwhile.
        let part = self.copy.leading_part(from..part.end);
        let route = match part.is_copied {
            true => &self.routes.target,
            false => &self.routes.source,
        };
        self.read_from(route, cx, request, from..part.end).await?;
        Ok(part.end)
    }

    /// Reads a part of what a request asks for from one of both disks.
    async fn read_from(
        &self,
        route: &Route,
        cx: &TaskContext,
        request: &Request,
        bytes: Range<u64>,
    ) -> Result<(), Errno> {
        self.check_not_over()?;
        // SAFETY: the source of the request keeps the list and its memory until the task is complete.
        let mut segments = unsafe { segments_of_part(request, bytes.clone()) };
        let part = Request {
            offset: bytes.start,
            len: bytes.end - bytes.start,
            iov: segments.as_mut_ptr(),
            iov_count: u32::try_from(segments.len()).unwrap_or(u32::MAX),
            ..*request
        };
        cx.run_on_route(route, part).await?;
        // Guests may have changed what was read.
        self.check_not_over()
    }

    /// Fails if guests no longer copy, or if the target may have lost what was copied.
    fn check_not_over(&self) -> Result<(), Errno> {
        match self.copy.is_over() || self.copy.may_have_lost_writes() {
            true => Err(SNAPSHOT_OVER),
            false => Ok(()),
        }
    }
}
