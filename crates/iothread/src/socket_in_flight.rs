//! Counts the requests of a socket device that are in flight, and keeps replaced disks until the requests that use them are done.
//!
//! The generation of a request is recorded by its slot. So a device need not stop when a node is replaced, or when another thread waits
//! for its requests.

use std::sync::mpsc::Sender;

use block::{AttachedDisk, DiskCall, DiskIo, IoContext, Request, SourceIo, token};
use engine::Completion;

/// The generation of a slot without a request: it is older than none.
const NOT_IN_FLIGHT: u64 = u64::MAX;

/// Requests in flight of one socket device.
#[derive(Default)]
pub(crate) struct InFlightSocketRequests {
    /// Generations of requests, by slot; [`NOT_IN_FLIGHT`] for others.
    generations: Vec<u64>,
    current_generation: u64,
    count: usize,
    /// Number of requests of older generations.
    older_count: usize,
    /// Disks that requests of older generations may use.
    retired: Vec<AttachedDisk>,
    /// Senders to be notified when no request of an older generation is in flight.
    settling: Vec<Sender<()>>,
}

impl InFlightSocketRequests {
    /// Counts a request that is submitted.
    pub fn count_submitted(&mut self, slot: u32) {
        let slot = slot as usize;
        if self.generations.len() <= slot {
            self.generations.resize(slot + 1, NOT_IN_FLIGHT);
        }
        self.generations[slot] = self.current_generation;
        self.count += 1;
    }

    /// Number of requests in flight.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Counts requests that are done.
    pub fn count_completed(&mut self, done: &[Completion]) {
        for completion in done {
            let slot = token::request_number(completion.token) as usize;
            self.older_count -= usize::from(self.generations[slot] < self.current_generation);
            self.generations[slot] = NOT_IN_FLIGHT;
        }
        self.count -= done.len();
    }

    /// Keeps a disk until the requests in flight, which may use it, are done.
    pub fn retire_disk(&mut self, disk: AttachedDisk) {
        self.retired.push(disk);
        self.begin_generation();
    }

    /// Notifies `reply` when the requests in flight are done.
    pub fn reply_when_current_requests_end(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
        self.begin_generation();
    }

    fn begin_generation(&mut self) {
        self.current_generation += 1;
        self.older_count = self.count;
    }

    /// Lets the requests that another thread waits for bypass their gates. To be called each turn: a slot whose request has left may be
    /// taken by a later request, which has to wait at its gate. Call it before
    /// [`end_older_generations_if_done`](Self::end_older_generations_if_done): with none left it passes an empty set, which ends the bypass.
    pub fn let_waited_for_requests_bypass_gates(&self, io: &mut IoContext, source_index: u32) {
        if self.settling.is_empty() {
            return;
        }
        let generations = (0..).zip(&self.generations);
        let older = generations.filter(|(_, generation)| **generation < self.current_generation);
        io.let_requests_bypass_gates(source_index, older.map(|(slot, _)| slot));
    }

    /// Releases the disks of older generations and ends the waits for them, if they have no requests.
    pub fn end_older_generations_if_done(&mut self, io: &mut IoContext) {
        if self.older_count > 0 {
            return;
        }
        for disk in self.retired.drain(..) {
            io.detach(disk);
        }
        for reply in self.settling.drain(..) {
            // The receiver may be gone; ignore the error.
            let _ = reply.send(());
        }
    }
}

/// The disks of a socket device; counts the requests that it submits.
pub(crate) struct CountingDiskIo<'a> {
    pub io: SourceIo<'a>,
    pub in_flight: &'a mut InFlightSocketRequests,
}

impl DiskIo for CountingDiskIo<'_> {
    fn room(&self, disk: u32) -> usize {
        self.io.room(disk)
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        self.in_flight
            .count_submitted(token::request_number(request.token));
        // SAFETY: our caller promises the same.
        unsafe { self.io.submit(disk, request) };
    }

    fn submit_blocking_call(&mut self, disk: u32, call: DiskCall, number: u32) {
        self.in_flight.count_submitted(number);
        self.io.submit_blocking_call(disk, call, number);
    }
}
