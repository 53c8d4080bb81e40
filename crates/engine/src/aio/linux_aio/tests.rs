//! Tests of each rule of the engine, on a kernel that tests control.

use std::collections::VecDeque;

use super::*;
use crate::Op;
use crate::testing::{Buffers, FakeKernel, Outcome};

const WRITE: Op = Op::Write;

/// The default file of requests.
const FILE: RawFd = 7;

type Fake = LinuxAio<FakeKernel>;

fn engine(max_events: u32, max_batch: u32) -> Fake {
    engine_on(FakeKernel::new((0..=255).collect()), max_events, max_batch)
}

fn engine_on(kernel: FakeKernel, max_events: u32, max_batch: u32) -> Fake {
    let settings = AioSettings {
        max_events,
        max_batch,
    };
    LinuxAio::with_kernel(kernel, settings).unwrap()
}

impl Fake {
    fn put(&mut self, request: Request) -> Result<(), Full> {
        self.put_to(FILE, request)
    }

    fn put_to(&mut self, fd: RawFd, request: Request) -> Result<(), Full> {
        // SAFETY: the tests keep buffers until their requests are completed.
        unsafe { self.start_or_queue(fd, &request) }
    }

    fn put_flush(&mut self, token: u64) -> Result<(), Full> {
        self.put(Request::without_data(Op::Flush, 0, 0, token))
    }

    fn reaped(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        let mut out = Vec::new();
        self.reap(&mut out);
        out.iter().map(|c| (c.token, c.result)).collect()
    }

    /// Runs the two phases of an iteration.
    fn iterate(&mut self) -> Vec<(u64, Result<(), Errno>)> {
        let done = self.reaped();
        self.submit();
        done
    }

    /// Slots that the kernel has, which are the tokens where every request is the first in its slot.
    fn held(&self) -> Vec<u64> {
        self.kernel.held.iter().map(|h| h.iocb.data).collect()
    }

    fn eventfd_readable(&self) -> bool {
        let fd = self.eventfd();
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
    }
}

impl crate::model_tests::Subject for Fake {
    fn new(disk: Vec<u8>, max_events: u32, plain: bool) -> Self {
        let mut kernel = FakeKernel::new(disk);
        if plain {
            kernel = kernel.without_ring();
        }
        let settings = AioSettings {
            max_events,
            ..AioSettings::default()
        };
        let mut aio = LinuxAio::with_kernel(kernel, settings).unwrap();
        aio.synchronous.watch_file_eagerly(3);
        aio
    }

    const FILE: RawFd = 3;
    const ERRORS_REFUSE: bool = true;

    fn set_max_batch(&mut self, max_batch: u32) {
        self.set_max_batch(max_batch);
    }

    fn pending_count(&self) -> usize {
        self.pending_count()
    }

    fn in_flight_count(&self) -> usize {
        self.in_flight_count()
    }

    fn is_blocked(&self) -> bool {
        self.is_blocked()
    }

    fn sees_completions(&self) -> bool {
        self.has_completions() || !self.uses_completion_ring()
    }

    fn answer_within(&mut self, within: bool, outcome: Outcome) {
        self.kernel.keeps = within.then_some(0);
        self.kernel.transfer_ns = if within { 0 } else { 1_000_000 };
        self.kernel.transfers.push_back(outcome);
    }

    fn counts(&self) -> (u64, u64) {
        (self.stats().resumed, self.stats().completed)
    }

    fn script(&mut self) -> &mut VecDeque<Result<usize, Errno>> {
        &mut self.kernel.script
    }

    fn calls(&self) -> &[usize] {
        &self.kernel.calls
    }

    fn held_slots(&self) -> Vec<u64> {
        self.held()
    }

    fn complete(&mut self, index: usize, outcome: Outcome) {
        self.kernel.complete(index, outcome);
    }

    fn disk(&self) -> &[u8] {
        &self.kernel.disk
    }
}

mod completion_source;
mod life;
mod submit;
mod synchronous;
mod transfer;
