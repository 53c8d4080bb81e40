//! Requests of a socket device in flight, and the disks that older ones of them use.
//!
//! A request has a slot, and its slot the generation that it was submitted in. So a device need not stop for another node, or to
//! learn when what it has submitted is done.

use std::sync::mpsc::Sender;

use block::{AttachedDisk, DiskCall, DiskIo, IoContext, Request, SourceIo, token};
use engine::Completion;

/// Those of one socket device.
#[derive(Default)]
pub(crate) struct InFlightRequests {
    /// By slot.
    generations: Vec<u64>,
    current: u64,
    count: usize,
    /// Those of older generations.
    older: usize,
    /// Older requests may use them.
    retired: Vec<AttachedDisk>,
    /// Each waits until no older request is in flight.
    settling: Vec<Sender<()>>,
}

impl InFlightRequests {
    /// A request of this slot is in flight from now on.
    pub fn begin(&mut self, slot: u32) {
        let slot = slot as usize;
        if self.generations.len() <= slot {
            self.generations.resize(slot + 1, 0);
        }
        self.generations[slot] = self.current;
        self.count += 1;
    }

    /// Requests are done.
    pub fn complete(&mut self, done: &[Completion]) {
        for completion in done {
            let slot = token::number(completion.token) as usize;
            self.older -= usize::from(self.generations[slot] < self.current);
        }
        self.count -= done.len();
    }

    /// What is in flight may use this disk, and what comes later does not.
    pub fn retire(&mut self, disk: AttachedDisk) {
        self.retired.push(disk);
        self.begin_generation();
    }

    /// `reply` is sent to when what is in flight is done.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
        self.begin_generation();
    }

    fn begin_generation(&mut self) {
        self.current += 1;
        self.older = self.count;
    }

    /// Ends what waits for older requests, if there are none.
    pub fn end_older(&mut self, io: &mut IoContext) {
        if self.older > 0 {
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

/// The disks of a socket device, with a record of what it submits.
pub(crate) struct TrackedIo<'a> {
    pub io: SourceIo<'a>,
    pub in_flight: &'a mut InFlightRequests,
}

impl DiskIo for TrackedIo<'_> {
    fn room(&self, disk: u32) -> usize {
        self.io.room(disk)
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        self.in_flight.begin(token::number(request.token));
        // SAFETY: our caller promises the same.
        unsafe { self.io.submit(disk, request) };
    }

    fn call(&mut self, disk: u32, call: DiskCall, number: u32) {
        self.in_flight.begin(number);
        self.io.call(disk, call, number);
    }
}
