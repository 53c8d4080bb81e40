//! Null disks: their options, what a request to one does, and the queue of an iothread for requests that need no backend.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::{Completion, Full, IoBackend};

use crate::clock::now_ns;
use engine::{Op, Request};

/// Options of a null disk.
#[derive(Clone, Copy, Debug)]
pub struct NullOptions {
    /// Bytes, rounded up to sectors.
    pub size: u64,
    /// Whether reads fill the buffer with zeroes, or leave it unchanged.
    pub read_zeroes: bool,
    /// Latency of a request, in nanoseconds.
    pub latency_ns: u64,
}

impl NullOptions {
    /// Carries out what a request does to memory.
    ///
    /// # Safety
    /// The segments of a read are valid and writable.
    #[inline]
    pub(crate) unsafe fn zero_read_buffers_if_set(&self, request: &Request) {
        if self.read_zeroes && request.op == Op::Read {
            // SAFETY: the caller's promise.
            unsafe { fill_with_zeroes(request.iov, request.iov_count) };
        }
    }
}

/// The most requests that wait for the next reap, and the most that wait for the clock. The two are counted apart, so that
/// delayed requests take no room from those of other disks. As with Linux AIO, what exceeds it stays in the guest's ring.
pub(crate) const CAPACITY: usize = 1024;

/// The queue of an iothread for requests of null disks, and for requests of other disks that need no I/O.
pub(crate) struct NullQueue {
    done: Vec<Completion>,
    /// Requests to disks with a latency: deadline, number of arrival, token. The number orders equal deadlines.
    delayed: BinaryHeap<Reverse<(u64, u64, u64)>>,
    arrivals: u64,
}

impl NullQueue {
    pub fn new() -> Self {
        NullQueue {
            done: Vec::with_capacity(CAPACITY),
            delayed: BinaryHeap::with_capacity(CAPACITY),
            arrivals: 0,
        }
    }

    /// How many requests to a null disk are taken before the next reap.
    #[inline]
    pub fn room_for(&self, options: &NullOptions) -> usize {
        let taken = match options.latency_ns {
            0 => self.done.len(),
            _ => self.delayed.len(),
        };
        CAPACITY - taken
    }

    /// Queues a request that completes after `latency_ns`.
    #[cold]
    fn add_delayed(&mut self, latency_ns: u64, token: u64) {
        let deadline_ns = now_ns().saturating_add(latency_ns);
        self.arrivals += 1;
        self.delayed
            .push(Reverse((deadline_ns, self.arrivals, token)));
    }

    /// Completes a request that needs no I/O at the next reap.
    pub fn complete_at_next_reap(&mut self, token: u64) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        self.done.push(successful_completion(token));
        Ok(())
    }

    /// Completes delayed requests whose time has come.
    #[cold]
    fn reap_delayed(&mut self, out: &mut Vec<Completion>) {
        let now_ns = now_ns();
        while self
            .next_timed_completion_ns()
            .is_some_and(|due| due <= now_ns)
            && let Some(Reverse((_, _, token))) = self.delayed.pop()
        {
            out.push(successful_completion(token));
        }
    }
}

impl IoBackend for NullQueue {
    type File = NullOptions;

    /// The room for requests that need no I/O.
    #[inline]
    fn room(&self) -> usize {
        CAPACITY - self.done.len()
    }

    /// Does at once what a request does to memory. It completes at the next reap, or after the latency of its disk.
    #[inline]
    unsafe fn start_or_queue(
        &mut self,
        options: NullOptions,
        request: &Request,
    ) -> Result<(), Full> {
        if self.room_for(&options) == 0 {
            return Err(Full);
        }
        // SAFETY: the caller's promise.
        unsafe { options.zero_read_buffers_if_set(request) };
        if options.latency_ns == 0 {
            self.done.push(successful_completion(request.token));
        } else {
            self.add_delayed(options.latency_ns, request.token);
        }
        Ok(())
    }

    fn submit(&mut self) {}

    #[inline]
    fn reap(&mut self, out: &mut Vec<Completion>) {
        out.append(&mut self.done);
        if !self.delayed.is_empty() {
            self.reap_delayed(out);
        }
    }

    #[inline]
    fn has_completions(&self) -> bool {
        !self.done.is_empty()
            || self
                .next_timed_completion_ns()
                .is_some_and(|due| due <= now_ns())
    }

    #[inline]
    fn next_timed_completion_ns(&self) -> Option<u64> {
        self.delayed
            .peek()
            .map(|Reverse((deadline_ns, ..))| *deadline_ns)
    }
}

/// Fills the segments of a read with zeroes.
///
/// # Safety
/// The list has so many segments, and they are valid and writable.
#[cold]
pub(crate) unsafe fn fill_with_zeroes(iov: *const libc::iovec, iov_count: u32) {
    for index in 0..iov_count as usize {
        // SAFETY: the caller promises that the list and the memory that it names are valid. Bytes have no alignment, and a
        // guest that writes them meanwhile only harms itself.
        unsafe {
            let segment = *iov.add(index);
            std::ptr::write_bytes(segment.iov_base.cast::<u8>(), 0, segment.iov_len);
        }
    }
}

/// The completion of a request that succeeded.
#[inline]
fn successful_completion(token: u64) -> Completion {
    Completion {
        token,
        result: Ok(()),
    }
}
