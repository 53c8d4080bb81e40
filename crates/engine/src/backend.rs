//! The trait of a backend: how an iothread starts, submits and reaps requests, whichever way they are carried out.

use crate::{Completion, Full, Request};

/// A backend that carries requests out: Linux AIO, the ring, worker threads, null disks. It belongs to one iothread.
///
/// A backend keeps a record of each request that it has taken, in a bounded table, and refuses requests when that is full.
/// Its completions carry the tokens of the requests. An iteration of the loop calls [`reap`](Self::reap) and then
/// [`submit`](Self::submit) once, and no call waits.
pub trait IoBackend {
    /// A file, as its requests name it.
    type File;

    /// How many requests are certain to be taken before the next reap.
    fn room(&self) -> usize;

    /// Takes a request, which is at its offset in the file: starts it, or queues it for the next submit.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// Until the completion of the request was reaped, or the backend was dropped: the array at
    /// `iov` holds `iov_count` entries, stays where it is, and is not accessed by anyone
    /// else, as the backend changes it; the buffers that it names stay valid for the kernel to
    /// write (read) or read (write); the file stays open; and all of it may be used from whatever thread owns the
    /// backend. Buffers that lie in guest memory may be accessed by the guest at any time.
    unsafe fn start_or_queue(&mut self, file: Self::File, request: &Request) -> Result<(), Full>;

    /// The submit phase: submits pending requests to the kernel.
    fn submit(&mut self);

    /// The reap phase: appends completions to `out`. Nothing is submitted here.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Whether [`reap`](Self::reap) may find something; without a system call, for polling.
    fn has_completions(&self) -> bool;

    /// Prepares for the loop to block: until the next reap, completions signal a descriptor or wake the loop. True:
    /// something has finished already.
    fn prepare_to_block_and_recheck(&mut self) -> bool {
        self.has_completions()
    }

    /// The time at which the next request completes by the clock alone (the loop's clock, nanoseconds).
    fn next_timed_completion_ns(&self) -> Option<u64> {
        None
    }

    /// Whether requests wait that no completion will resume: the kernel was short of memory when nothing was in flight.
    /// The loop calls [`submit`](Self::submit) again after a moment.
    fn needs_retry(&self) -> bool {
        false
    }
}
