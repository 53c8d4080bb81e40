//! Requests of one thread to one image: starts them, and returns their completions to that thread.

mod completion_list;
mod slots;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::slice;
use std::sync::Arc;

use engine::{Completion, Errno, Full, Op, Request, skip_bytes, submit_tracepoints, zero_fill};
use telemetry::tracepoints::LIBRBD;

use crate::Image;
use crate::errno::{check, value_of};
use crate::library::ZEROES_THICK_PROVISION;
use crate::request_stats::{QueueRequestStats, now_in_ticks};
use slots::Slots;

/// Most requests in flight in a queue.
pub const MAX_IN_FLIGHT: usize = 256;

/// Most bytes of data that a queue has in flight, since librbd copies them: reads and writes beyond wait. A larger request is in
/// flight alone.
pub const MAX_BYTES_IN_FLIGHT: u64 = 32 << 20;

/// Requests of one thread to one image, in the shape of [`engine::IoBackend`].
///
/// It keeps the image open. Dropping it waits for nothing, so the owner of the buffers drops it when nothing is in flight.
pub struct ImageQueue {
    slots: Arc<Slots>,
    /// The requests, at the index of their slot.
    requests: Vec<Request>,
    /// When they were sent to librbd, in ticks; 0: not sent.
    sent_at: Vec<u64>,
    stats: Arc<QueueRequestStats>,
    /// Slots without a request; last in, first out.
    free: Vec<u32>,
    /// Bytes of reads and writes in flight.
    bytes_in_flight: u64,
    /// Reads and writes that wait until fewer bytes are in flight, in order.
    waiting: VecDeque<Request>,
}

// SAFETY: the pointers are those of requests, which may be used by the thread that owns the queue (`start`).
unsafe impl Send for ImageQueue {}

impl ImageQueue {
    /// An empty queue. A thread of librbd calls `wake` when it adds the first completion to an empty list; it must be cheap
    /// and must not panic. The owner itself may be the caller.
    #[must_use]
    pub fn new(image: Arc<Image>, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let none = Request::without_data(Op::Flush, 0, 0, 0);
        Self {
            stats: image.request_stats().reuse_or_add_queue_stats(),
            slots: Slots::new(image, wake),
            requests: vec![none; MAX_IN_FLIGHT],
            sent_at: vec![0; MAX_IN_FLIGHT],
            free: (0..).take(MAX_IN_FLIGHT).collect(),
            bytes_in_flight: 0,
            waiting: VecDeque::new(),
        }
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<Image> {
        self.slots.image()
    }

    /// Requests that were started and not reaped.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        MAX_IN_FLIGHT - self.room()
    }

    /// How many requests are certain to be taken before the next reap.
    #[must_use]
    pub fn room(&self) -> usize {
        self.free.len() - self.waiting.len()
    }

    /// Starts a request, or keeps it until fewer bytes are in flight. A range that is not within the image as it is now completes
    /// with [`Errno::IO`], except for the end of a read, which is filled with zeroes.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the request was not taken.
    ///
    /// # Safety
    /// As for [`engine::IoBackend::start_or_queue`].
    pub unsafe fn start(&mut self, request: &Request) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        if has_data(request) && (!self.waiting.is_empty() || !self.has_room_for_bytes(request.len))
        {
            self.waiting.push_back(*request);
            return Ok(());
        }
        // SAFETY: our caller promises the same.
        unsafe { self.start_in_slot(request) }
    }

    /// Whether so many bytes of data may be sent to librbd now.
    fn has_room_for_bytes(&self, len: u64) -> bool {
        self.bytes_in_flight == 0 || self.bytes_in_flight.saturating_add(len) <= MAX_BYTES_IN_FLIGHT
    }

    /// Starts requests that have waited, as far as there is room for their bytes.
    fn start_waiting(&mut self) {
        while let Some(request) = self.waiting.front().copied()
            && self.has_room_for_bytes(request.len)
        {
            // SAFETY: the promise of the caller of `start` lasts until the completion is reaped.
            match unsafe { self.start_in_slot(&request) } {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Full) => unreachable!("room was kept for requests that wait"),
            }
        }
    }

    /// Starts a request.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    unsafe fn start_in_slot(&mut self, request: &Request) -> Result<(), Full> {
        let slot = self.free.pop().ok_or(Full)?;
        if has_data(request) {
            self.bytes_in_flight += request.len;
        }
        self.requests[slot as usize] = *request;
        self.sent_at[slot as usize] = 0;
        if let Err(errno) = check_range(request, self.image().known_size()) {
            self.slots.complete_early(slot, Err(errno));
            return Ok(());
        }
        if request.len == 0 && request.op != Op::Flush {
            // librbd refuses a list without segments.
            self.slots.complete_early(slot, Ok(()));
            return Ok(());
        }
        let now = now_in_ticks();
        self.sent_at[slot as usize] = now;
        self.stats.count_sent(now);
        // SAFETY: our caller promises that buffers stay valid.
        unsafe { self.submit(slot, request) };
        Ok(())
    }

    /// Calls librbd.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    unsafe fn submit(&self, slot: u32, request: &Request) {
        let (functions, image) = (self.image().functions(), self.image().pointer().0);
        let Request {
            offset,
            len,
            iov,
            iov_count,
            ..
        } = *request;
        let (Ok(iov_count), Ok(size)) = (c_int::try_from(iov_count), usize::try_from(len)) else {
            self.slots.complete_early(slot, Err(Errno::INVAL));
            return;
        };
        let stable = request.fua && matches!(request.op, Op::Write | Op::WriteZeroes { .. });
        self.slots.start(slot, stable, |completion| {
            submit_tracepoints::fire_begin(LIBRBD, 1);
            // SAFETY: the image is open, since the slots keep it; our caller promises that the buffers are valid, and
            // librbd uses the list until the completion at most.
            let returned = unsafe {
                match request.op {
                    Op::Read => {
                        (functions.rbd_aio_readv)(image, iov, iov_count, offset, completion)
                    }
                    Op::Write => {
                        (functions.rbd_aio_writev)(image, iov, iov_count, offset, completion)
                    }
                    Op::Flush => (functions.rbd_aio_flush)(image, completion),
                    Op::Discard => (functions.rbd_aio_discard)(image, offset, len, completion),
                    Op::WriteZeroes { unmap } => {
                        let flags = if unmap { 0 } else { ZEROES_THICK_PROVISION };
                        (functions.rbd_aio_write_zeroes)(image, offset, size, completion, flags, 0)
                    }
                }
            };
            submit_tracepoints::fire_end(LIBRBD, 1, check(returned).map(|()| 1));
            returned
        });
    }

    /// Appends completions to `out`, in the order in which librbd has completed the requests.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        let first = out.len();
        let Self {
            slots,
            requests,
            sent_at,
            stats,
            free,
            bytes_in_flight,
            ..
        } = self;
        let connection = slots.image().connection().status();
        slots.completions().take(|slot, returned, completed_at| {
            let request = &requests[slot as usize];
            let (returned, sent_at) = (value_of(returned), sent_at[slot as usize]);
            if sent_at != 0 {
                let bytes = returned.is_ok().then_some(request.len);
                stats.count_answered(request.op, sent_at, completed_at, bytes);
                if let Err(errno) = returned {
                    connection.learn_from_error(errno);
                }
            }
            let result = returned.map(|moved| {
                if request.op == Op::Read && moved < request.len {
                    // SAFETY: `start`'s caller promises that the list and its buffers are ours until this completion.
                    unsafe { zero_rest(request, moved) };
                }
            });
            out.push(Completion {
                token: request.token,
                result,
            });
            if has_data(request) {
                *bytes_in_flight -= request.len;
            }
            free.push(slot);
        });
        // The list has the latest first.
        out[first..].reverse();
        self.start_waiting();
    }

    /// Whether [`reap`](Self::reap) finds something; without a system call.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        !self.slots.completions().is_empty()
    }
}

/// Whether a request has data that librbd copies.
fn has_data(request: &Request) -> bool {
    matches!(request.op, Op::Read | Op::Write)
}

/// Whether a request lies within an image of this size. librbd clips a write across the end, and reports success.
fn check_range(request: &Request, size: u64) -> Result<(), Errno> {
    let end = request.offset.checked_add(request.len).ok_or(Errno::IO)?;
    let inside = match request.op {
        Op::Flush => true,
        // Another client may have made the image smaller: its end is shorter than the guest knows.
        Op::Read => end <= size || request.offset < size,
        Op::Write | Op::Discard | Op::WriteZeroes { .. } => end <= size,
    };
    if inside { Ok(()) } else { Err(Errno::IO) }
}

/// Fills a read with zeroes behind what was read.
///
/// # Safety
/// The list and its buffers are valid, and ours.
unsafe fn zero_rest(request: &Request, moved: u64) {
    // SAFETY: our caller promises it. A u32 fits a usize here.
    let iov = unsafe { slice::from_raw_parts_mut(request.iov, request.iov_count as usize) };
    skip_bytes(iov, moved);
    // SAFETY: as above.
    unsafe { zero_fill(iov) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_read_may_go_past_the_end_and_only_in_part() {
        let writes = [
            Op::Write,
            Op::Discard,
            Op::WriteZeroes { unmap: true },
            Op::WriteZeroes { unmap: false },
        ];
        let check = |op, offset, len| check_range(&Request::without_data(op, offset, len, 0), 8192);
        for op in writes.into_iter().chain([Op::Read]) {
            assert_eq!(check(op, 4096, 4096), Ok(()), "{op:?}");
            assert_eq!(check(op, 8192, 512), Err(Errno::IO), "{op:?}");
            assert_eq!(check(op, u64::MAX, 512), Err(Errno::IO), "{op:?}");
        }
        for op in writes {
            assert_eq!(check(op, 4096, 4097), Err(Errno::IO), "{op:?}");
        }
        assert_eq!(check(Op::Read, 4096, 4097), Ok(()));
    }
}
