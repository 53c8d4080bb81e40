//! Tasks: requests whose operation is an async function on the iothread.
//!
//! A driver whose operation is more than one transfer (a delay, a lookup that reads metadata, a write that
//! goes to two places) is written as an async function, see [`TaskNode`]. The iothread polls it. There is
//! no runtime: an iothread has one [`Executor`], which is woken by the loop's own wake-up, and tasks that
//! wait cost the loop nothing.
//!
//! Rules for all tasks:
//! - A task is first polled in the submit phase, never while its request is admitted: admission has counted
//!   on room that the task's own I/O might take.
//! - Its I/O is put into an outbox, which the submit phase drains. What finds no room in a backend stays there.
//! - A task is complete when its function has returned *and* none of its I/O is out. So memory that its request
//!   names is never in use after the completion, even if a function drops a future that it did not await.
//! - So is the memory for I/O of its own, which is reserved before the first poll: see `buffers.rs`.
//! - Polls per phase are bounded, and the next phase goes on where one has stopped.

mod buffers;
mod context;
mod executor;
mod io;
mod timers;
mod woken;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::Errno;

use engine::Request;

pub(crate) use context::TaskContext;
pub(crate) use executor::Executor;
pub(crate) use io::BackendRequest;

/// Makes an iothread's loop look, from any thread.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// A future of one iothread.
pub(crate) type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A node whose operations, or some of them, are tasks. There is one for each route, on the iothread of the route.
pub(crate) trait TaskNode {
    /// Memory that carrying the request out needs, beside that of the request: for this node's own I/O, and
    /// [below it](crate::route::Route::buffer_bytes). The task has it before it is first polled.
    fn buffer_bytes(&self, _request: &Request) -> usize {
        0
    }

    /// Carries a request out. What is done before the future is made happens in the order in which requests are
    /// admitted; the future is polled later, in no particular order. The token of the request has no meaning here.
    fn run(self: Rc<Self>, cx: TaskContext, request: Request) -> LocalFuture<Result<(), Errno>>;
}
