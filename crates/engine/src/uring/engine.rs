//! The io_uring engine: pushes, submits and reaps requests, and registers files and guest memory with its ring.
//!
//! A request is written into the submission queue when it is pushed, and submitted with the others
//! in the submit phase, or as soon as there are as many as one call may take (the batch limit).
//!
//! The kernel flushes completions, which makes them visible, only inside of our own calls; a flag in the
//! ring says that there are some. So polling is two loads, and a call is made only when it will find something. The eventfd is off
//! while the loop is awake.
//!
//! Order: requests reach the kernel in the order in which they were pushed; the rest of a short transfer follows those that
//! wait. The kernel completes in any order. The engine never waits, except in `drop`.

use std::os::fd::{BorrowedFd, RawFd};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use telemetry::tracepoints::IO_URING;

use super::buffers::{BufferError, RegisteredBuffers};
use super::error::UringError;
use super::request::{File, NextStep, Record};
use super::ring::{KernelRing, MAX_BUFFERS, Ring};
use super::settings::{UringSettings, UringStats};
use crate::Completion;
use crate::backend::IoBackend;
use crate::batch::BatchLimit;
use crate::io::{Full, Request};
use crate::slots::Slots;
use crate::submit_tracepoints;

/// How long `drop` waits before it retries a ring that cannot wait now.
const DROP_RETRY: Duration = Duration::from_millis(1);

/// One ring with its requests. Belongs to the thread that made it.
///
/// A loop calls [`reap`](IoBackend::reap) and [`submit`](IoBackend::submit) once per iteration. Before it blocks it calls
/// [`prepare_to_block_and_recheck`](IoBackend::prepare_to_block_and_recheck), and checks
/// [`is_blocked`](Self::is_blocked).
///
/// Dropping the engine waits until the kernel has ended every request in flight; buffers may be
/// freed afterwards. Requests that were not reaped have no completion then.
#[derive(Debug)]
pub struct Uring<R: Ring = KernelRing> {
    ring: R,
    slots: Slots<Record>,
    /// Slots to be submitted again; empty between calls.
    to_resubmit: Vec<u32>,
    /// Registered memory.
    buffers: RegisteredBuffers,
    /// Whether requests with several buffers may use registered memory.
    vectored_fixed: bool,
    /// Entries in the submission queue.
    pending: usize,
    in_flight: usize,
    batch_limit: BatchLimit,
    max_events: u32,
    /// Requests in flight and pending that occupy a worker thread of the kernel, and the most of them.
    blocking: u32,
    max_blocking: u32,
    blocked: bool,
    /// The eventfd is on.
    is_eventfd_on: bool,
    has_warned: bool,
    stats: UringStats,
}

impl Uring<KernelRing> {
    /// An engine for the calling thread.
    ///
    /// # Errors
    /// [`UringError`], whose text names cause and remedy.
    pub fn new(settings: UringSettings) -> Result<Self, UringError> {
        if settings.max_events == 0 || settings.max_workers == 0 {
            return Err(UringError::Nothing);
        }
        let ring = KernelRing::new(settings)?;
        let vectored_fixed = ring.supports_vectored_fixed();
        let mut engine = Self::with_ring(ring, settings);
        engine.vectored_fixed = vectored_fixed;
        Ok(engine)
    }

    /// The eventfd. It becomes readable when something has completed since
    /// [`prepare_to_block_and_recheck`](IoBackend::prepare_to_block_and_recheck), for a poller that watches it for
    /// edges: then it never needs to be read. Non-blocking.
    #[must_use]
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.ring.event_fd()
    }

    /// Changes the most worker threads that the kernel starts for requests that would block, 1 or more (Linux 5.15; older
    /// kernels have their own bounds). Existing workers stay until they are idle.
    pub fn set_max_workers(&mut self, max_workers: u32) {
        self.ring.set_max_workers(max_workers);
        self.max_blocking = max_blocking_requests(max_workers);
    }

    /// Registers a file, which [`File::Registered`] then names until it is unregistered. False: the table has no such place,
    /// and the file is named by its descriptor.
    pub fn try_register_file(&mut self, index: u32, fd: RawFd) -> bool {
        self.ring.set_file_at(index, fd)
    }

    /// Unregisters a file, which the table keeps open until then.
    pub fn unregister_file(&mut self, index: u32) {
        self.ring.set_file_at(index, -1);
    }

    /// Registers `len` bytes of memory at `start`, until it is unregistered as often as it was registered. Its pages are
    /// pinned, which saves the kernel the look-up of pages for requests with buffers in it.
    ///
    /// # Errors
    /// [`BufferError`]. Nothing was registered, and requests go as before.
    ///
    /// # Safety
    /// The memory is mapped now, and stays so until it is unregistered.
    pub unsafe fn register_memory(&mut self, start: usize, len: usize) -> Result<(), BufferError> {
        // SAFETY: our caller promises the same.
        unsafe {
            self.buffers
                .register_or_share_range(start, len, &mut self.ring)
        }
    }

    /// Unregisters memory. False: it stays registered, since requests with buffers in it are in flight.
    pub fn unregister_memory_if_idle(&mut self, start: usize, len: usize) -> bool {
        let Self {
            ring,
            slots,
            buffers,
            ..
        } = self;
        buffers.unshare_or_unregister_if_idle(start, len, ring, |place| {
            !slots.any_in_flight(|request| request.place == Some(place))
        })
    }
}

impl<R: Ring> Uring<R> {
    /// An engine on `ring`.
    pub fn with_ring(ring: R, settings: UringSettings) -> Self {
        let max_events = settings.max_events.min(ring.sq_entries());
        Self {
            ring,
            slots: Slots::new(max_events),
            to_resubmit: Vec::with_capacity(max_events as usize),
            buffers: RegisteredBuffers::new(MAX_BUFFERS),
            vectored_fixed: false,
            pending: 0,
            in_flight: 0,
            batch_limit: BatchLimit::new(settings.max_batch, max_events),
            max_events,
            blocking: 0,
            max_blocking: max_blocking_requests(settings.max_workers),
            blocked: false,
            is_eventfd_on: false,
            has_warned: false,
            stats: UringStats::default(),
        }
    }

    /// Whether the kernel has refused temporarily and requests wait for it to accept more. While
    /// [`in_flight_count`](Self::in_flight_count) is not zero, the next completion resumes them; at zero the loop must call
    /// [`submit`](IoBackend::submit) by itself.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Most requests in the next io_uring_enter(2).
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

    /// How many flushes, discards and write-zeroes will find a worker thread of the kernel at once. Further ones would wait,
    /// in the order of their submission, so the caller keeps them back or has another thread carry them out.
    #[must_use]
    pub fn free_workers(&self) -> usize {
        self.max_blocking.saturating_sub(self.blocking) as usize
    }

    /// Number of requests that the kernel has.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    /// Number of requests that wait for io_uring_enter(2).
    #[inline]
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.pending
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> UringStats {
        UringStats {
            max_batch: self.batch_limit.max_batch(),
            ..self.stats
        }
    }

    /// Finds the place of registered memory that holds all buffers of a request, if there is one, and counts the request as fixed.
    fn find_and_count_registered(&mut self, record: &Record) -> Option<u16> {
        let buffers = record.buffers();
        if buffers.len() > 1 && !self.vectored_fixed {
            return None;
        }
        let place = self.buffers.find_place(buffers);
        self.stats.fixed += u64::from(place.is_some());
        place
    }

    /// Writes the submission entry of a slot's request, for the next call.
    #[inline]
    fn push_entry_and_mark_in_flight(&mut self, slot: u32) {
        let entry = self.slots.request_mut(slot).submission_entry(slot);
        // SAFETY: there are no more slots than entries, and each slot has at most one; the submitter of the request promised
        // to keep what it names.
        unsafe { self.ring.push(&entry) };
        self.slots.set_in_flight(slot);
        self.pending += 1;
    }

    /// The batch limit for the next call.
    #[inline]
    fn next_batch_limit(&self) -> usize {
        self.batch_limit.for_next_call(self.in_flight)
    }

    /// Submits the entries that wait, until there are none or the kernel refuses temporarily.
    fn submit_pending(&mut self) {
        self.blocked = false;
        while self.pending > 0 {
            let count = self.pending.min(self.next_batch_limit());
            // At most the limit.
            let wanted = u32::try_from(count).unwrap_or(u32::MAX);
            self.stats.submit_calls += 1;
            // The same call flushes completions, if there are any.
            let flush = self.ring.has_unflushed_completions();
            submit_tracepoints::fire_begin(IO_URING, count);
            let submitted = self.ring.submit(wanted, flush);
            submit_tracepoints::fire_end(IO_URING, count, submitted);
            match submitted {
                Ok(taken @ 1..) => {
                    let taken = taken.min(count);
                    self.pending -= taken;
                    self.in_flight += taken;
                    self.stats.submitted += taken as u64;
                    self.stats.largest_batch = self.stats.largest_batch.max(taken as u64);
                }
                Err(Errno::INTR) => {}
                refused => {
                    self.stats.refused += 1;
                    self.blocked = true;
                    self.log_unexpected_refusal(refused);
                    return;
                }
            }
        }
    }

    /// Logs an unexpected refusal once. (Lack of memory for a request, or of room for its completion, is expected.)
    fn log_unexpected_refusal(&mut self, refused: Result<usize, Errno>) {
        let expected = matches!(refused, Ok(_) | Err(Errno::AGAIN | Errno::BUSY));
        if !expected && !self.has_warned {
            self.has_warned = true;
            tracing::error!(
                ?refused,
                advice = "check free memory, and the limits of the control group",
                "io_uring_enter refuses to submit: requests wait and are retried"
            );
        }
    }
}

/// If a push makes a full batch, or takes the last room, then everything pending is submitted at once, unless the kernel has
/// refused temporarily and has not completed anything since. A discard is for a block device (Linux 6.12); for a file
/// it is write-zeroes with unmap.
///
/// After a refusal the submit phase does nothing until a completion was reaped, unless nothing is in flight:
/// then it tries again.
impl<R: Ring> IoBackend for Uring<R> {
    type File = File;

    #[inline]
    fn room(&self) -> usize {
        self.slots.room()
    }

    #[inline]
    unsafe fn start_or_queue(&mut self, file: File, request: &Request) -> Result<(), Full> {
        // SAFETY: our caller promises the same.
        let mut record = unsafe { Record::new(file, request) };
        if self.buffers.has_any() {
            record.place = self.find_and_count_registered(&record);
        }
        let slot = self.slots.take(|_| record).ok_or(Full)?;
        self.blocking += u32::from(record.occupies_worker());
        self.push_entry_and_mark_in_flight(slot);
        if !self.blocked && (self.pending >= self.next_batch_limit() || self.room() == 0) {
            self.submit_pending();
        }
        Ok(())
    }

    fn submit(&mut self) {
        if self.pending == 0 || self.blocked && self.in_flight > 0 {
            return;
        }
        self.submit_pending();
    }

    /// With room for `max_events` completions `out` never grows.
    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.is_eventfd_on {
            self.is_eventfd_on = false;
            self.ring.set_eventfd_disabled_if_possible(true);
        }
        if self.in_flight > 0 && self.ring.has_unflushed_completions() {
            self.stats.getevents_calls += 1;
            // After a failure the flag stays set, and the next reap retries.
            let _ = self.ring.make_completions_visible(false);
        }
        let Self {
            ring,
            slots,
            to_resubmit,
            in_flight,
            blocking,
            stats,
            blocked,
            ..
        } = self;
        ring.drain_completions(|user_data, res| {
            let Some((slot, record)) = slots.try_end_in_flight(user_data) else {
                debug_assert!(false, "a completion of no request: {user_data}, {res}");
                return;
            };
            *in_flight -= 1;
            *blocked = false;
            match record.apply_result(res) {
                NextStep::Done(result) => {
                    *blocking -= u32::from(record.occupies_worker());
                    let token = slots.release(slot).token;
                    out.push(Completion { token, result });
                    stats.completed += 1;
                }
                NextStep::Resume => {
                    stats.resumed += 1;
                    to_resubmit.push(slot);
                }
                NextStep::Retry => {
                    stats.retried += 1;
                    to_resubmit.push(slot);
                }
            }
        });
        for index in 0..self.to_resubmit.len() {
            self.push_entry_and_mark_in_flight(self.to_resubmit[index]);
        }
        self.to_resubmit.clear();
    }

    /// May be true without a completion: the kernel queues its work and sets the flag afterwards, when we may have run that
    /// work already. Only the next work clears the flag, so it is ignored while nothing is in flight.
    #[inline]
    fn has_completions(&self) -> bool {
        self.ring.has_completions() || self.in_flight > 0 && self.ring.has_unflushed_completions()
    }

    /// Switches the eventfd on: until the next reap, completions write it.
    fn prepare_to_block_and_recheck(&mut self) -> bool {
        if !self.is_eventfd_on && self.in_flight > 0 && self.ring.can_disable_eventfd() {
            self.is_eventfd_on = true;
            self.ring.set_eventfd_disabled_if_possible(false);
            if !self.has_completions() {
                self.stats.getevents_calls += 1;
                let _ = self.ring.make_completions_visible(false);
            }
        }
        self.has_completions()
    }

    fn needs_retry(&self) -> bool {
        self.blocked && self.in_flight == 0
    }
}

impl<R: Ring> Drop for Uring<R> {
    fn drop(&mut self) {
        // Closing the ring would end requests some time later, when their buffers are freed. The kernel does not see requests
        // that were not submitted.
        while self.in_flight > 0 {
            if let Err(error) = self.ring.make_completions_visible(true)
                && error != Errno::INTR
            {
                thread::sleep(DROP_RETRY);
            }
            let in_flight = &mut self.in_flight;
            self.ring.drain_completions(|_, _| *in_flight -= 1);
        }
    }
}

/// How many flushes, discards and write-zeroes may occupy workers of the kernel: half of them, since transfers that would
/// block need some as well.
fn max_blocking_requests(max_workers: u32) -> u32 {
    max_workers.div_ceil(2)
}

#[cfg(test)]
mod tests;
