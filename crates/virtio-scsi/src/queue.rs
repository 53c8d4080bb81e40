//! One queue for commands: chains in, block requests out; completions in, used entries out.

mod answer;
mod cancelling;
mod command;
mod probes;
mod stats;
mod together;
mod transfer;

use std::collections::VecDeque;
use std::sync::Arc;

use block::{DiskIo, Request, token};
use engine::{Completion, Errno};
use telemetry::queue::{Admission, AdmitTime, Kind, QueueName, QueueStats};
use virtqueue::{Chain, GuestMemory};

use crate::address::Address;
use crate::cancel::Cancel;
use crate::device::{Device, Sizes};
use crate::error::AdmitError;
use crate::port::Port;
use crate::slots::Slots;
use crate::table::Table;
use crate::usual::UsualSizes;
use cancelling::Fence;
use stats::Counts;
use together::{Done, Run};

/// A disk as a queue knows it.
#[derive(Clone)]
pub struct QueueDisk {
    /// That of its unit.
    pub address: Address,
    /// What the queue's commands to it are counted in, beside the queue's own figures. Other queues count there as well
    /// if they run on the same thread.
    pub stats: Arc<QueueStats>,
}

/// The commands of one virtqueue.
pub struct Queue {
    name: QueueName,
    device: Arc<Device>,
    port: Arc<dyn Port>,
    sizes: Sizes,
    usual: UsualSizes,
    table: Table,
    slots: Slots,
    /// Used entries were pushed outside of completions.
    answered: bool,
    /// When the present batch was taken. It only grows.
    taken: AdmitTime,
    /// The first of the generation that is current.
    generation: AdmitTime,
    /// When what was finished and is older was taken.
    old: Vec<AdmitTime>,
    /// Tasks that may go now.
    ready: VecDeque<u32>,
    /// Requests that their disk had no room for.
    deferred: VecDeque<(u32, Request)>,
    /// Functions that wait for commands in the kernel.
    cancelling: Vec<(u32, Arc<Cancel>)>,
    /// Functions about commands that may still be in the ring.
    fences: Vec<Fence>,
    /// When what is done now is done, in ticks.
    now: u64,
    counts: Counts,
    run: Run,
    done: Done,
}

/// What the commands of an admission have in common.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The guest's memory.
    pub memory: &'a GuestMemory,
    /// When they are taken off the ring, in [ticks](telemetry::counters::Clock).
    pub now: u64,
}

// SAFETY: the requests that wait point to tasks and lists in its slots, and to guest memory that is held for them.
unsafe impl Send for Queue {}

impl Queue {
    /// Called `name`, for a ring of `size` entries. `port` leads to it. What it does is counted in
    /// `stats`, which no other running queue has.
    #[must_use]
    pub fn new(
        name: QueueName,
        device: Arc<Device>,
        size: u16,
        port: Arc<dyn Port>,
        stats: Arc<QueueStats>,
    ) -> Self {
        device.open_queue(port.clone());
        Queue {
            name,
            sizes: device.sizes(),
            usual: UsualSizes::new(device.sizes()),
            table: Table::new(&device, []),
            slots: Slots::new(size, port.clone()),
            device,
            port,
            answered: false,
            taken: AdmitTime::default().next(),
            generation: AdmitTime::default(),
            old: Vec::new(),
            ready: VecDeque::new(),
            deferred: VecDeque::new(),
            cancelling: Vec::new(),
            fences: Vec::new(),
            now: 0,
            counts: Counts::new(stats),
            run: Run::default(),
            done: Done::default(),
        }
    }

    /// Its disks from now on. Commands may be in flight if these have the addresses of those before, in their order.
    pub fn set_disks(&mut self, disks: &[QueueDisk]) {
        let addresses = disks.iter().map(|disk| disk.address);
        if self.in_flight() > 0 {
            let same = self.table.addresses().eq(addresses);
            debug_assert!(same, "commands name disks by their places");
            return;
        }
        debug_assert_eq!(self.done.commands, 0, "what is over counts for its disk");
        self.table = Table::new(&self.device, addresses);
        let stats = disks.iter().map(|disk| disk.stats.clone());
        self.counts.set_disks(stats.collect());
    }

    /// Commands of the guest that are not finished.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    /// Whether used entries were pushed other than by completions since this was last asked: then the
    /// ring has entries to publish.
    #[inline]
    pub fn take_answered(&mut self) -> bool {
        std::mem::take(&mut self.answered)
    }

    /// Whether requests wait for room: see [`submit_deferred`](Self::submit_deferred).
    #[must_use]
    #[inline]
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Commands that are taken from now on can be told from those before: they are not stamped earlier than what is
    /// returned, and all others are.
    pub fn begin_generation(&mut self) -> AdmitTime {
        self.taken = self.taken.next();
        self.generation = self.taken;
        self.generation
    }

    /// When something was taken that was finished and is of an older generation.
    #[inline]
    pub fn take_old(&mut self) -> Option<AdmitTime> {
        self.old.pop()
    }

    /// Takes up to `budget` chains off the ring. What can be answered at once is pushed to the
    /// ring, the rest goes to the io.
    ///
    /// # Errors
    /// When the guest broke the queue. Commands before the breaking one were taken.
    #[inline]
    pub fn admit(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: Batch<'_>,
        chain: &mut Chain,
        io: &mut impl DiskIo,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        (self.sizes, self.now) = (self.device.sizes(), batch.now);
        self.usual = UsualSizes::new(self.sizes);
        self.end_done();
        let taken = AdmitTime::new(batch.now);
        // Whatever the clock does: generations are told apart by it.
        if taken > self.taken {
            self.taken = taken;
        }
        let admission = self.drain(ring, batch, chain, io, budget);
        self.end_run();
        self.counts.end_turn(self.in_flight());
        admission
    }

    #[inline(always)]
    fn drain(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: Batch<'_>,
        chain: &mut Chain,
        io: &mut impl DiskIo,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        // Neither begins in the middle of an admission.
        let plain = self.fences.is_empty() && !probes::wanted();
        for _ in 0..budget {
            if !self.deferred.is_empty() && !self.submit_deferred(io) {
                return Ok(Admission::Stalled);
            }
            let Some(id) = ring.pop(batch.memory, chain)? else {
                self.fences.clear();
                return Ok(Admission::Drained);
            };
            if !(plain && self.begin_transfer(id, chain, io)) {
                self.start(ring, id, chain, io)?;
            }
        }
        if !self.deferred.is_empty() && !self.submit_deferred(io) {
            return Ok(Admission::Stalled);
        }
        Ok(Admission::Budget)
    }

    /// Hands over what waited for room. False: something still does, or again.
    #[cold]
    pub fn submit_deferred(&mut self, io: &mut impl DiskIo) -> bool {
        for _ in 0..self.deferred.len() {
            if let Some((slot, request)) = self.deferred.pop_front()
                && let Some(disk) = self.slots.get(slot).place.disk
            {
                self.submit(slot, disk, request, io);
            }
        }
        self.deferred.is_empty()
    }

    /// Block requests of this queue are done `now`. `failed` is told of those that the disk has failed, while their slots still are
    /// what they were. Commands count at the [end of the batch](Self::end_batch).
    pub fn complete(
        &mut self,
        ring: &mut virtqueue::Queue,
        done: &[Completion],
        now: u64,
        io: &mut impl DiskIo,
        mut failed: impl FnMut(&Queue, u32, Errno),
    ) {
        // Tracers see the ends of commands with tasks.
        let plain = !probes::end_wanted();
        for completion in done {
            let (slot, result) = (token::number(completion.token), completion.result);
            if plain && result.is_ok() && self.complete_transfer(ring, slot, now) {
                continue;
            }
            if let Err(errno) = result {
                failed(self, slot, errno);
            }
            self.complete_command(ring, slot, result, now, io);
        }
    }

    /// Whether a command that is not done reads from its disk.
    #[must_use]
    pub fn is_read(&self, slot: u32) -> bool {
        let slot = self.slots.get(slot);
        match self.transfers_to(slot) {
            Some(_) => !slot.writes,
            None => slot.kind == Some(Kind::Read),
        }
    }

    /// The disk that a command, which is not done, has asked for something.
    #[must_use]
    pub fn disk(&self, slot: u32) -> Option<u32> {
        let slot = self.slots.get(slot);
        match self.transfers_to(slot) {
            Some(_) => Some(slot.disk),
            None => slot.kind.and(slot.place.disk),
        }
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// What it counts in.
    #[must_use]
    #[inline]
    pub fn stats(&self) -> &QueueStats {
        &self.counts.queue
    }

    /// What was completed so far is published.
    #[inline]
    pub fn end_batch(&mut self) {
        self.end_done();
        self.counts.end_batch(self.slots.in_flight());
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.close_queue(&self.port);
    }
}
