//! The Linux AIO engine: its settings and state, the queue in front of io_submit(2), and the reap pass behind it.
//!
//! Requests wait in `pending` until the submit phase, or until there are as many as one call may take (the batch limit):
//! then they are submitted at once. The batch limit exists because io_submit(2) processes its whole array before it
//! returns: with hundreds of requests, the first have long finished before their completions can be reaped.
//!
//! Order: requests reach the kernel in the order in which they were pushed; what is left of a
//! short transfer is submitted before them. The kernel completes in any order.
//!
//! The engine never waits, except in `drop`, and never retries a request that failed.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::abi::{IoEvent, Iocb};
use super::completion_source::CompletionSource;
use super::error::AioError;
use super::kernel::{AioKernel, ContextId, Kernel};
use super::request::Record;
use super::settings::{AioSettings, AioStats, MAX_EVENTS_LIMIT};
use super::synchronous::SyncDetector;
use crate::Completion;
use crate::backend::IoBackend;
use crate::batch::BatchLimit;
use crate::io::{Full, Request};
use crate::slots::Slots;
use crate::transfer::TransferProgress;

/// One AIO context with its queue. Belongs to one thread at a time.
///
/// A loop calls [`reap`](IoBackend::reap) and [`submit`](IoBackend::submit) once per iteration, and checks
/// [`is_blocked`](Self::is_blocked) before it blocks.
///
/// Dropping the engine waits in io_destroy(2) until the kernel has ended every request in flight;
/// buffers may be freed afterwards. Requests that were not reaped have no completion then.
#[derive(Debug)]
pub struct LinuxAio<K: AioKernel = Kernel> {
    kernel: K,
    context: ContextId,
    completion_source: CompletionSource,
    event_fd: OwnedFd,
    slots: Slots<Record>,
    /// Slots that wait for io_submit(2), in order.
    pending: VecDeque<u32>,
    /// Slots with a rest after a short transfer; empty between calls.
    to_resubmit: Vec<u32>,
    /// Slots that completed without an event, refused or synchronous, in order; they wait for the next reap.
    finished: Vec<(u32, Result<(), Errno>)>,
    /// The array that io_submit(2) reads; meaningless between calls.
    iocbs: Vec<*mut Iocb>,
    in_flight: usize,
    batch_limit: BatchLimit,
    synchronous: SyncDetector,
    max_events: u32,
    blocked: bool,
    supports_fdsync: bool,
    stats: AioStats,
}

// SAFETY: the raw pointers name the context's ring, which any thread of the process may read as
// long as it is one at a time (which `&mut self` and the missing `Sync` ensure), records inside
// `slots`, and the submitters' buffers, which `start_or_queue` demands to be usable from every thread.
unsafe impl<K: AioKernel + Send> Send for LinuxAio<K> {}

impl LinuxAio<Kernel> {
    /// An engine on the kernel that this process runs on.
    ///
    /// # Errors
    /// [`AioError`], whose text names cause and remedy.
    pub fn new(settings: AioSettings) -> Result<Self, AioError> {
        Self::with_kernel(Kernel, settings)
    }
}

impl<K: AioKernel> LinuxAio<K> {
    /// An engine on `kernel`.
    ///
    /// # Errors
    /// As for [`new`](LinuxAio::new).
    pub fn with_kernel(mut kernel: K, settings: AioSettings) -> Result<Self, AioError> {
        let max_events = settings.max_events;
        if !(1..=MAX_EVENTS_LIMIT).contains(&max_events) {
            return Err(AioError::MaxEvents { max_events });
        }
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| AioError::EventFd { errno })?;
        let context = kernel
            .setup(max_events)
            .map_err(|errno| AioError::from_setup_errno(errno, max_events))?;
        let supports_fdsync = kernel.supports_fdsync(context);
        let completion_source = CompletionSource::new(&kernel, context, settings);
        let capacity = max_events as usize;
        let batch_limit = BatchLimit::new(settings.max_batch, max_events);
        let engine = Self {
            kernel,
            context,
            completion_source,
            event_fd,
            slots: Slots::new(max_events),
            pending: VecDeque::with_capacity(capacity),
            to_resubmit: Vec::with_capacity(capacity),
            finished: Vec::with_capacity(capacity),
            iocbs: Vec::with_capacity(capacity),
            in_flight: 0,
            batch_limit,
            synchronous: SyncDetector::default(),
            max_events,
            blocked: false,
            supports_fdsync,
            stats: AioStats::default(),
        };
        Ok(engine)
    }

    /// Begins to observe whether requests to file `fd` complete within io_submit(2). While they do, reads and writes
    /// are done by system calls: the submit phase blocks as long as before, and each request costs less. For files
    /// without `RWF_NOWAIT`; those with it are never synchronous for long. Needs the completion ring.
    pub fn start_detecting_synchronous(&mut self, fd: RawFd) {
        self.synchronous.watch_file(fd);
    }

    /// Whether the next transfers of a file complete within the submit phase, which blocks so long.
    #[inline]
    #[must_use]
    pub fn transfers_synchronously(&self, fd: RawFd) -> bool {
        self.synchronous.next_uses_pread_pwrite(fd)
    }

    /// Ends [`start_detecting_synchronous`](Self::start_detecting_synchronous) for a file, before it is closed.
    pub fn stop_detecting_synchronous(&mut self, fd: RawFd) {
        self.synchronous.unwatch_file(fd);
    }

    /// The eventfd that the kernel writes for every completion. A poller that watches it for edges never needs to read it.
    /// Non-blocking.
    #[must_use]
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }

    /// Whether the kernel returned `EAGAIN` and requests wait for it to accept more. While [`in_flight_count`](Self::in_flight_count) is
    /// not zero, the next completion resumes them; at zero the loop must call [`submit`](IoBackend::submit) by itself, for
    /// instance after a short timer.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Most requests in the next io_submit(2).
    #[must_use]
    pub fn max_batch(&self) -> u32 {
        self.batch_limit.max_batch()
    }

    /// Changes the batch limit from the next call on; 0 means the default, and more
    /// than `max_events` means `max_events`.
    pub fn set_max_batch(&mut self, max_batch: u32) {
        self.batch_limit.set_or_default(max_batch);
    }

    /// Most requests in flight and pending together.
    #[must_use]
    pub fn max_events(&self) -> u32 {
        self.max_events
    }

    /// Number of requests that the kernel has.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    /// Number of requests that wait for io_submit(2).
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Whether [`Op::Flush`](crate::Op::Flush) works here (Linux 4.18). If not, a flush must be
    /// made by a thread that can block.
    #[must_use]
    pub fn supports_fdsync(&self) -> bool {
        self.supports_fdsync
    }

    /// Whether completions are read in user space.
    #[must_use]
    pub fn uses_completion_ring(&self) -> bool {
        matches!(self.completion_source, CompletionSource::Ring(_))
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> AioStats {
        AioStats {
            max_batch: self.batch_limit.max_batch(),
            ..self.stats
        }
    }

    /// Handles the events that the kernel has now, from the ring or by io_getevents(2).
    fn reap_events(&mut self, out: &mut Vec<Completion>) {
        match &mut self.completion_source {
            CompletionSource::Ring(ring) => {
                let ring = *ring;
                let mut events = ring.current_events();
                for event in events.by_ref() {
                    self.complete_or_requeue_request(event, out);
                }
                ring.free_events_before(events);
            }
            CompletionSource::Syscall(events) => {
                let mut events = mem::take(events);
                // Bounded like the ring: what is in flight now cannot grow during the pass.
                while self.in_flight > 0 {
                    self.stats.getevents_calls += 1;
                    let count = self
                        .kernel
                        .getevents(self.context, &mut events)
                        .unwrap_or(0);
                    for &event in events.iter().take(count) {
                        self.complete_or_requeue_request(event, out);
                    }
                    if count < events.len() {
                        break;
                    }
                }
                self.completion_source = CompletionSource::Syscall(events);
            }
        }
    }

    /// Completes the request of an event, or queues the rest of it to be submitted again after a short transfer.
    fn complete_or_requeue_request(&mut self, event: IoEvent, out: &mut Vec<Completion>) {
        let Some((slot, request)) = self.slots.try_end_in_flight(event.data) else {
            debug_assert!(
                false,
                "completion of a request that the kernel does not have: {event:?}"
            );
            return;
        };
        self.in_flight -= 1;
        match request.apply_result(event.res) {
            TransferProgress::Done(result) => {
                out.push(Completion {
                    token: self.slots.release(slot).token,
                    result,
                });
            }
            TransferProgress::Resume { .. } => {
                self.stats.resumed += 1;
                self.to_resubmit.push(slot);
            }
        }
    }
}

/// Requests are reads, writes and flushes. If a push makes a full batch, or takes the last room, then everything
/// pending is submitted at once, unless the kernel returned `EAGAIN` and has not completed anything since.
///
/// After an `EAGAIN` the submit phase does nothing until a completion was reaped, unless nothing is in flight: then it
/// tries again. A request that the kernel refuses with any other error is completed with it by the next reap; the
/// others go on. The rest of a short transfer, and after a completion what `EAGAIN` had blocked, goes with the next
/// submit phase.
///
/// A loop that lets the engine [detect](LinuxAio::start_detecting_synchronous) synchronous files must check for completions
/// before it blocks: synchronous requests do not write the eventfd. Without the completion ring `has_completions` only
/// knows of refused requests.
impl<K: AioKernel> IoBackend for LinuxAio<K> {
    type File = RawFd;

    #[inline]
    fn room(&self) -> usize {
        self.slots.room()
    }

    #[inline(always)]
    unsafe fn start_or_queue(&mut self, fd: RawFd, request: &Request) -> Result<(), Full> {
        let event_fd = self.event_fd.as_raw_fd();
        // SAFETY: our caller's promise is the one that `Record::new` wants.
        let make = |slot| unsafe { Record::new(fd, request, slot, event_fd) };
        let slot = self.slots.take(make).ok_or(Full)?;
        self.pending.push_back(slot);
        if !self.blocked && (self.pending.len() >= self.next_batch_limit() || self.room() == 0) {
            self.submit_or_transfer_pending();
        }
        Ok(())
    }

    fn submit(&mut self) {
        if self.pending.is_empty() || self.blocked && self.in_flight > 0 {
            return;
        }
        self.submit_or_transfer_pending();
    }

    /// With room for `max_events` completions `out` never grows.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        for (slot, result) in self.finished.drain(..) {
            out.push(Completion {
                token: self.slots.release(slot).token,
                result,
            });
        }
        let in_flight_before = self.in_flight;
        self.reap_events(out);
        if in_flight_before != self.in_flight {
            self.blocked = false;
        }
        while let Some(slot) = self.to_resubmit.pop() {
            self.pending.push_front(slot);
        }
        self.stats.completed += (out.len() - before) as u64;
    }

    fn has_completions(&self) -> bool {
        let in_ring = match &self.completion_source {
            CompletionSource::Ring(ring) => ring.has_events(),
            CompletionSource::Syscall(_) => false,
        };
        in_ring || !self.finished.is_empty()
    }

    fn needs_retry(&self) -> bool {
        self.blocked && self.in_flight == 0
    }
}

impl<K: AioKernel> Drop for LinuxAio<K> {
    fn drop(&mut self) {
        self.kernel.destroy(self.context);
    }
}

mod submit;
#[cfg(test)]
mod tests;
