//! The way of a request from an iothread to whatever carries it out.
//!
//! - Aligned reads and writes with direct I/O, and flushes: Linux AIO.
//! - What Linux AIO cannot do (page cache, unaligned memory, parts of blocks, more segments than one
//!   system call takes, discard, write-zeroes): worker threads.
//! - What needs nothing done: complete at the next reap.
//!
//! One [`Engines`] belongs to one iothread; nothing here takes a lock or allocates for a request
//! that Linux AIO carries. An engine that is full says so, and the request stays in the guest's
//! ring until something has completed: the ring is the queue.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use engine::{
    AioSettings, AioStats, Completion, Full, Io, LinuxAio, Op as AioOp, Pool, PoolError,
    PoolSettings,
};

use crate::job::Job;
use crate::node::{Backing, FdBacking, Node};
use crate::null::NullQueue;
use crate::request::{Op, Request};
use crate::transfer::IOV_MAX;

/// How the engines of one iothread are made.
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    /// Linux AIO.
    pub aio: AioSettings,
    /// The worker threads.
    pub pool: PoolSettings,
}

/// The engines of one iothread.
pub struct Engines {
    /// `None` where the kernel has none to give: worker threads do it all then.
    aio: Option<LinuxAio>,
    pool: Pool<Job>,
    null: NullQueue,
}

impl Engines {
    /// Makes them. `wake` is called by workers when they finished something.
    ///
    /// # Errors
    /// When the limits of the worker threads contradict each other. Linux AIO that cannot be had
    /// is no error: it is said once in the log, with what to do about it.
    pub fn new(
        settings: EngineSettings,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, PoolError> {
        let aio = LinuxAio::new(settings.aio)
            .inspect_err(|error| tracing::warn!(%error, "no Linux AIO: worker threads do all I/O"))
            .ok();
        Ok(Engines {
            aio,
            pool: Pool::new(settings.pool, wake)?,
            null: NullQueue::new(),
        })
    }

    /// How many requests Linux AIO and the null disks complete in one reap at most, as long as nothing
    /// was submitted yet.
    #[must_use]
    pub fn most_completions(&self) -> usize {
        self.aio.as_ref().map_or(0, LinuxAio::room) + 2 * self.null.room(0)
    }

    /// Becomes readable when Linux AIO has completed something, once per event; never needs to be
    /// read.
    #[must_use]
    pub fn aio_eventfd(&self) -> Option<BorrowedFd<'_>> {
        self.aio.as_ref().map(LinuxAio::eventfd)
    }

    /// Takes a request. [`Full`]: come again after the next completion.
    ///
    /// # Errors
    /// [`Full`], and nothing was taken.
    ///
    /// # Safety
    /// Until the completion with the request's token has been reaped: the node is kept, the list of
    /// segments stays in place and is touched by nobody else, and the memory that it names stays
    /// mapped (writable, for reads).
    #[inline]
    pub unsafe fn submit(&mut self, node: &Node, request: Request) -> Result<(), Full> {
        match &*node.backing {
            Backing::Fd(backing) => {
                let nothing_to_do = match request.op {
                    Op::Flush => backing.no_flush || node.read_only(),
                    Op::Discard => !node.unmap(),
                    Op::Read | Op::Write | Op::WriteZeroes { .. } => false,
                };
                if nothing_to_do {
                    return self.null.complete(request.token);
                }
                if let (true, Some(aio)) = (backing.native_aio, &mut self.aio)
                    && let Some(op) = aio_op(backing, node.base(), &request, aio)
                {
                    let Request {
                        offset,
                        iov,
                        iov_count,
                        len,
                        token,
                        ..
                    } = request;
                    let fd = backing.raw_fd();
                    let offset = offset + node.base();
                    let io = Io {
                        op,
                        fd,
                        offset,
                        iov,
                        iov_count,
                        len,
                        token,
                    };
                    // SAFETY: our caller promises more than `push` asks for.
                    unsafe { aio.push(io) }?;
                    let max_batch = backing.aio_max_batch as usize;
                    if max_batch != 0 && aio.pending() >= max_batch {
                        aio.submit();
                    }
                    return Ok(());
                }
                // SAFETY: our caller promises the same.
                self.pool.push(unsafe { Job::new(node, request) });
                Ok(())
            }
            // SAFETY: our caller promises that the segments are valid.
            Backing::Null(options) => unsafe { self.null.push(options, &request) },
        }
    }

    /// How many requests to `node` are taken for sure before the next reap. The submitter asks
    /// before it takes a request out of the guest's ring.
    #[inline]
    #[must_use]
    pub fn room(&self, node: &Node) -> usize {
        match (&*node.backing, &self.aio) {
            (Backing::Fd(backing), Some(aio)) if backing.native_aio => {
                aio.room().min(self.null.room(0))
            }
            (Backing::Fd(_), _) => self.null.room(0),
            (Backing::Null(options), _) => self.null.room(options.latency_ns),
        }
    }

    /// The submit phase: hands pending requests to the kernel.
    #[inline]
    pub fn flush_batch(&mut self) {
        if let Some(aio) = &mut self.aio
            && aio.pending() > 0
        {
            aio.submit();
        }
    }

    /// The reap phase: takes what has finished.
    #[inline]
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        if let Some(aio) = &mut self.aio {
            aio.reap(out);
        }
        if self.pool.has_completions() {
            self.pool.reap(out);
        }
        self.null.reap(out);
    }

    /// Whether something has finished; no syscall.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.aio.as_ref().is_some_and(LinuxAio::has_completions)
            || self.null.has_completions()
            || self.pool.has_completions()
    }

    /// When the next request completes by the clock alone (the loop's clock, nanoseconds).
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.null.next_deadline_ns()
    }

    /// Whether requests wait that no completion will set going: the kernel was short of memory
    /// when nothing was in flight. The loop comes back after a moment.
    #[must_use]
    pub fn needs_retry(&self) -> bool {
        self.aio
            .as_ref()
            .is_some_and(|aio| aio.blocked() && aio.in_flight() == 0)
    }

    /// Changes the batch limit; 0 is the default.
    pub fn set_aio_max_batch(&mut self, max_batch: u32) {
        if let Some(aio) = &mut self.aio {
            aio.set_max_batch(max_batch);
        }
    }

    /// What Linux AIO has counted.
    #[must_use]
    pub fn aio_stats(&self) -> Option<AioStats> {
        self.aio.as_ref().map(LinuxAio::stats)
    }
}

/// What Linux AIO is to do; `None` when it cannot without blocking.
#[inline]
fn aio_op(backing: &FdBacking, base: u64, request: &Request, aio: &LinuxAio) -> Option<AioOp> {
    let aligned = || {
        if !(1..=IOV_MAX).contains(&(request.iov_count as usize)) {
            return false;
        }
        // SAFETY: `Engines::submit`'s caller vouches for the list.
        let iov = unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
        backing
            .direct
            .is_some_and(|direct| direct.fits(base + request.offset, request.len, iov))
    };
    match request.op {
        Op::Read if aligned() => Some(AioOp::Read),
        // Beside writes of partial blocks every write is done by a worker, under the range lock.
        Op::Write if !backing.block_mode.partial() && aligned() => Some(AioOp::Write {
            dsync: request.fua && !backing.no_flush,
        }),
        Op::Flush if aio.supports_fdsync() => Some(AioOp::Flush),
        _ => None,
    }
}
