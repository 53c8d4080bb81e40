//! The submit pass of the Linux AIO engine: pending requests go to the kernel in order, by io_submit(2), or by read and write system
//! calls for files that answer synchronously.

use std::os::fd::RawFd;

use rustix::io::Errno;
use telemetry::tracepoints::LINUX_AIO;

use super::LinuxAio;
use crate::aio::completion_source::CompletionSource;
use crate::aio::kernel::AioKernel;
use crate::aio::synchronous::{REQUESTS_PER_STEP, SynchronousTransferTotals};
use crate::submit_tracepoints;
use crate::transfer::TransferProgress;

impl<K: AioKernel> LinuxAio<K> {
    /// The batch limit for the next call. The room of the context needs no check: every request that is pending or in flight
    /// has a record.
    pub(super) fn next_batch_limit(&self) -> usize {
        self.batch_limit.for_next_call(self.in_flight)
    }

    /// Submits pending requests, in order, until there are none or the kernel returns `EAGAIN`.
    #[inline(never)]
    pub(super) fn submit_or_transfer_pending(&mut self) {
        self.blocked = false;
        while !self.blocked
            && let Some(&first) = self.pending.front()
        {
            match self.fd_for_synchronous_transfer(first) {
                Some(fd) => self.transfer_synchronously(fd),
                None => self.submit_batch(),
            }
        }
    }

    /// The file of a request, if it is to be carried out synchronously; `None`: it is submitted.
    #[inline]
    fn fd_for_synchronous_transfer(&mut self, slot: u32) -> Option<RawFd> {
        let request = self.slots.request_mut(slot);
        let fd = request.fd();
        (self.synchronous.next_uses_pread_pwrite(fd) && request.is_transfer_without_flags())
            .then_some(fd)
    }

    /// Fills the array of the next io_submit(2), and returns how many requests are in it.
    fn collect_batch(&mut self) -> usize {
        self.iocbs.clear();
        for index in 0..self.pending.len().min(self.next_batch_limit()) {
            let slot = self.pending[index];
            if self.fd_for_synchronous_transfer(slot).is_some() {
                break;
            }
            self.iocbs.push(&raw mut self.slots.request_mut(slot).iocb);
        }
        debug_assert!(self.in_flight + self.iocbs.len() <= self.max_events as usize);
        self.iocbs.len()
    }

    /// Calls io_submit(2) once, for the requests before the next synchronous one.
    fn submit_batch(&mut self) {
        let count = self.collect_batch();
        self.stats.submit_calls += 1;
        submit_tracepoints::fire_begin(LINUX_AIO, count);
        // SAFETY: the control blocks lie in `slots`, which is not accessed during the call; the submitters promised to keep
        // what they name until completion.
        let submitted = unsafe { self.kernel.submit(self.context, &self.iocbs) };
        submit_tracepoints::fire_end(LINUX_AIO, count, submitted);
        match submitted {
            // The kernel accepts at least one request or returns an error. 0 would be treated as EAGAIN.
            Ok(0) | Err(Errno::AGAIN) => {
                self.stats.eagain += 1;
                self.blocked = true;
            }
            Ok(accepted) => self.move_and_observe_accepted(accepted.min(count)),
            Err(errno) => self.fail_first_pending(errno),
        }
    }

    /// Carries out transfers of one file by read and write system calls, from the first pending request on. The rest of a
    /// short transfer stays first.
    fn transfer_synchronously(&mut self, fd: RawFd) {
        let begin_ns = self.kernel.now_ns();
        let mut step = SynchronousTransferTotals::default();
        while step.requests < REQUESTS_PER_STEP
            && let Some(&slot) = self.pending.front()
            && self.fd_for_synchronous_transfer(slot) == Some(fd)
        {
            let request = self.slots.request_mut(slot);
            step.requests += 1;
            step.bytes += request.remaining_bytes();
            // SAFETY: the submitter promised to keep what the control block names until completion.
            let res = unsafe { self.kernel.pread_or_pwrite(&request.iocb) };
            match request.apply_result(res) {
                TransferProgress::Done(result) => {
                    self.pending.pop_front();
                    self.finished.push((slot, result));
                }
                TransferProgress::Resume { .. } => self.stats.resumed += 1,
            }
        }
        self.stats.synchronous += u64::from(step.requests);
        step.took_ns = self.kernel.now_ns().saturating_sub(begin_ns);
        self.synchronous.observe_transfers(fd, step);
    }

    /// Moves the first `count` pending requests, which the kernel has accepted and which are at least one, to those in flight; lets
    /// the detector see whether the last one is done already.
    fn move_and_observe_accepted(&mut self, count: usize) {
        if let CompletionSource::Ring(ring) = self.completion_source {
            let last = self.pending[count - 1];
            let request = self.slots.request_mut(last);
            if request.is_transfer_without_flags() {
                let within = || ring.is_request_among_last_events(u64::from(last));
                self.synchronous.observe_submit(request.fd(), within);
            }
        }
        for slot in self.pending.drain(..count) {
            self.slots.set_in_flight(slot);
        }
        self.in_flight += count;
        self.stats.submitted += count as u64;
        self.stats.largest_batch = self.stats.largest_batch.max(count as u64);
    }

    /// Completes the first request with an error of io_submit(2), which concerns that one only.
    fn fail_first_pending(&mut self, errno: Errno) {
        if let Some(slot) = self.pending.pop_front() {
            self.finished.push((slot, Err(errno)));
            self.stats.refused += 1;
            // A loop that blocks before the next reap must wake up. The counter cannot overflow.
            let _ = rustix::io::write(&self.event_fd, &1_u64.to_ne_bytes());
        }
    }
}
