//! Async tasks: requests whose operation is an async function, which the iothread polls.
//!
//! An operation of a driver that is more than one transfer (a delay, a lookup that reads metadata, a write that goes to two
//! places) is an async function, see [`TaskNode`]. The iothread polls it. There is no runtime: an iothread has one
//! [`Executor`], which the loop's own wake-up wakes, and tasks that wait cost the loop nothing.
//!
//! Rules for all tasks:
//! - A task is first polled in the submit phase, never while its request is admitted: its I/O might take room that the
//!   admission counts on.
//! - Its I/O goes into an outbox, which the submit phase drains. Requests that a full backend refuses stay there.
//! - A task is complete when its function has returned *and* none of its I/O is in flight. So memory that its request names
//!   is never in use after the completion, even if the function drops a future that it did not await.
//! - The same holds for memory of its own I/O, which is reserved before the first poll: see `buffers.rs`.
//! - Polls per phase are bounded, and the next phase continues where the last one stopped.

mod buffers;
mod context;
mod executor;
mod io;
mod io_future;
mod shared;
mod timers;
mod woken;
mod woken_blocks;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use engine::Request;

pub(crate) use buffers::TaskBuffer;
pub(crate) use context::TaskContext;
pub(crate) use executor::Executor;
pub(crate) use io::{BackendRequest, RingRequest, SharedResource};

/// Wakes an iothread's loop, from any thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// A future of one iothread.
pub(crate) type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// The part of a node on one route whose operations are async tasks, on the iothread of the route.
pub(crate) trait TaskNode {
    /// Bytes of buffer memory that the request needs: for this node's own I/O, and
    /// [below it](crate::route::Route::needed_buffer_bytes). The task has it before it is first polled.
    fn needed_buffer_bytes(&self, _request: &Request) -> usize {
        0
    }

    /// Carries a request out. Code before the future runs in the order in which requests are admitted; the future is polled
    /// later, in this order too where few tasks are woken at once. The token of the request has no meaning here.
    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>>;
}
