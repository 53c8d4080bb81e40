//! A node of the simulator that rewrites whole blocks under a range lock, as drivers that copy or move data will.
//!
//! A write that begins within a block reads the block up to there, and writes that back together with its own data. Two such
//! writes in one block would undo each other, so every change of data locks its blocks in a range lock, which the routes of
//! all iothreads share.

use std::rc::Rc;
use std::sync::Arc;

use engine::{Errno, Op, Request};

use crate::node::AttachContext;
use crate::node::Driver;
use crate::node::Node;
use crate::range_lock::RangeLock;
use crate::route::task::{LocalFuture, TaskBuffer, TaskContext, TaskNode};
use crate::route::{OpHandler, Route};

/// Bytes of a block.
const BLOCK: u64 = 2048;
const BLOCK_BYTES: usize = 2048;

/// The driver of a node that rewrites blocks.
struct RewriteDriver {
    below: Arc<Node>,
    ranges: Arc<RangeLock>,
}

impl Driver for RewriteDriver {
    fn below(&self) -> Option<(&Arc<Node>, u64)> {
        Some((&self.below, 0))
    }

    /// Makes the route below, and an async task in front of all its operations.
    fn attach_route(&self, _: &Node, cx: &mut AttachContext<'_>) -> Route {
        let below = cx.attach_route(&self.below);
        let (storage, disk) = (below.storage.clone(), below.disk.clone());
        let task: Rc<dyn TaskNode> = Rc::new(RewriteTask {
            below,
            ranges: self.ranges.clone(),
        });
        let handler = || OpHandler::Task(task.clone());
        Route {
            read: handler(),
            write: handler(),
            zeroes: handler(),
            discard: handler(),
            flush: handler(),
            storage,
            merging_helps: false,
            disk,
        }
    }
}

/// The driver's async task, on the route of one source.
struct RewriteTask {
    below: Route,
    ranges: Arc<RangeLock>,
}

impl TaskNode for RewriteTask {
    fn needed_buffer_bytes(&self, request: &Request) -> usize {
        if request.op != Op::Write {
            return self.below.needed_buffer_bytes(request);
        }
        // Each part of it may begin anywhere in a block.
        let offset = request.offset / BLOCK * BLOCK;
        let rewrite = Request {
            offset,
            len: request.offset + request.len - offset,
            ..*request
        };
        BLOCK_BYTES + self.below.needed_buffer_bytes(&rewrite)
    }

    /// Passes reads and flushes on. Locks the blocks of a change, and rewrites the first if a write begins within it.
    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>> {
        Box::pin(async move {
            if matches!(request.op, Op::Read | Op::Flush) {
                return cx.run_on_route(&self.below, request).await;
            }
            let end = (request.offset + request.len).next_multiple_of(BLOCK);
            let _blocks = self
                .ranges
                .lock_async(request.offset / BLOCK * BLOCK..end)
                .await;
            match head_bytes_of_write(&request) {
                0 => cx.run_on_route(&self.below, request).await,
                head_bytes => self.read_head_and_write(&cx, request, head_bytes).await,
            }
        })
    }
}

/// Bytes of the first block that precede a write.
fn head_bytes_of_write(request: &Request) -> usize {
    match request.op {
        Op::Write => usize::try_from(request.offset % BLOCK).expect("less than a block"),
        _ => 0,
    }
}

impl RewriteTask {
    /// Reads the `head_bytes` of the first block that precede a write, and writes them back together with its data.
    async fn read_head_and_write(
        &self,
        cx: &TaskContext,
        write: Request,
        head_bytes: usize,
    ) -> Result<(), Errno> {
        let head = cx.take_buffer(head_bytes);
        let written = self.rewrite_head(cx, write, &head).await;
        // SAFETY: all requests with it have ended.
        unsafe { cx.return_buffer(head) };
        written
    }

    async fn rewrite_head(
        &self,
        cx: &TaskContext,
        write: Request,
        head: &TaskBuffer,
    ) -> Result<(), Errno> {
        let read = head.to_request(Op::Read, write.offset / BLOCK * BLOCK);
        cx.run_on_route(&self.below, read).await?;
        // SAFETY: the buffer's list has one segment; the source keeps those of its request until this is complete.
        let mut segments = unsafe {
            let data = std::slice::from_raw_parts(write.iov, write.iov_count as usize);
            [std::slice::from_raw_parts(read.iov, 1), data].concat()
        };
        let rewrite = Request {
            offset: read.offset,
            len: read.len + write.len,
            iov: segments.as_mut_ptr(),
            iov_count: write.iov_count + 1,
            ..write
        };
        cx.run_on_route(&self.below, rewrite).await
    }
}

impl Node {
    /// A node in front of another one, which rewrites blocks.
    #[must_use]
    pub fn with_rewritten_blocks(name: &str, below: &Arc<Node>) -> Arc<Node> {
        let driver = RewriteDriver {
            below: below.clone(),
            ranges: Arc::default(),
        };
        Node::new(name, below.geometry(), false, true, Box::new(driver))
    }
}
