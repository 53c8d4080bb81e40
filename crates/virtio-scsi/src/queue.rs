//! One queue for commands: chains in, block requests out; completions in, used entries out.

mod answer;
mod cancelling;
mod probes;
mod stats;

use std::collections::VecDeque;
use std::sync::Arc;

use block::Request;
use engine::Errno;
use scsi::{Attribute, Chore, Phase, Step};
use virtio_blk::{Admission, Kind, QueueName, QueueStats, Stamp};
use virtqueue::{Chain, ChainId, GuestMemory, Virtqueue};

use crate::address::Address;
use crate::cancel::Cancel;
use crate::device::{Device, NEXUS, Sizes};
use crate::error::{AdmitError, RequestError};
use crate::parse::Parse;
use crate::port::Port;
use crate::slots::{Slots, State};
use crate::table::Table;
use crate::wire::Response;
use cancelling::Fence;
use stats::Counts;

/// Where block requests go.
pub trait Sink {
    /// How many requests this disk takes for sure: by its place in what [`Queue::set_disks`] was told.
    fn room(&self, disk: usize) -> usize;

    /// Takes a request; there was room.
    ///
    /// # Safety
    /// The request's segments are valid, and stay so until [`Queue::complete`] was called with
    /// the slot in its token.
    unsafe fn submit(&mut self, disk: usize, request: Request);

    /// Has something done on a thread that may wait, for a unit that shows this disk. It ends as a request does.
    fn call(&mut self, disk: usize, chore: Chore, token: u64);
}

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
    /// Upper half of every token: the lower is the slot.
    token_base: u64,
    device: Arc<Device>,
    port: Arc<dyn Port>,
    sizes: Sizes,
    table: Table,
    slots: Slots,
    /// Used entries were pushed outside of completions.
    answered: bool,
    /// The generation that is current.
    generation: Stamp,
    /// Those of what was finished and is older.
    old: Vec<Stamp>,
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
}

/// What the commands of an admission have in common.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    /// The guest's memory.
    pub memory: &'a GuestMemory,
    /// When they are taken off the ring, in [ticks](counters::Clock).
    pub now: u64,
}

// SAFETY: the requests that wait point to tasks and lists in its slots, and to guest memory that is held for them.
unsafe impl Send for Queue {}

impl Queue {
    /// Called `name`, for a ring of `size` entries. `token` names the queue among all of its iothread: block
    /// requests carry it in the upper half of their token. `port` leads to it. What it does is counted in
    /// `stats`, which no other running queue has.
    #[must_use]
    pub fn new(
        name: QueueName,
        device: Arc<Device>,
        size: u16,
        token: u32,
        port: Arc<dyn Port>,
        stats: Arc<QueueStats>,
    ) -> Self {
        device.open_queue(port.clone());
        Queue {
            name,
            token_base: u64::from(token) << 32,
            sizes: device.sizes(),
            table: Table::new(&device, []),
            slots: Slots::new(size, port.clone()),
            device,
            port,
            answered: false,
            generation: Stamp::default(),
            old: Vec::new(),
            ready: VecDeque::new(),
            deferred: VecDeque::new(),
            cancelling: Vec::new(),
            fences: Vec::new(),
            now: 0,
            counts: Counts::new(stats),
        }
    }

    /// Its disks from now on. Nothing is in flight.
    pub fn set_disks(&mut self, disks: &[QueueDisk]) {
        debug_assert_eq!(self.in_flight(), 0, "commands name disks by their places");
        let addresses = disks.iter().map(|disk| disk.address);
        self.table = Table::new(&self.device, addresses);
        self.counts.disks = disks.iter().map(|disk| disk.stats.clone()).collect();
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

    /// Commands that are taken from now on can be told from those before: they are of the generation that
    /// is returned, and all others of older ones.
    pub fn begin_generation(&mut self) -> Stamp {
        self.generation = self.generation.next();
        self.generation
    }

    /// The generation of something that was finished, if it is an older one.
    #[inline]
    pub fn take_old(&mut self) -> Option<Stamp> {
        self.old.pop()
    }

    /// Takes up to `budget` chains off the ring. What can be answered at once is pushed to the
    /// ring, the rest goes to the sink.
    ///
    /// # Errors
    /// When the guest broke the queue. Commands before the breaking one were taken.
    #[inline]
    pub fn admit(
        &mut self,
        ring: &mut impl Virtqueue,
        batch: Batch<'_>,
        chain: &mut Chain,
        sink: &mut impl Sink,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        (self.sizes, self.now) = (self.device.sizes(), batch.now);
        let admission = self.drain(ring, batch, chain, sink, budget);
        self.counts.end_turn(self.in_flight());
        admission
    }

    #[inline]
    fn drain(
        &mut self,
        ring: &mut impl Virtqueue,
        batch: Batch<'_>,
        chain: &mut Chain,
        sink: &mut impl Sink,
        budget: usize,
    ) -> Result<Admission, AdmitError> {
        for _ in 0..budget {
            if !self.deferred.is_empty() && !self.submit_deferred(sink) {
                return Ok(Admission::Stalled);
            }
            let Some(id) = ring.pop(batch.memory, chain)? else {
                self.fences.clear();
                return Ok(Admission::Drained);
            };
            self.start(ring, id, batch, chain, sink)?;
        }
        if !self.deferred.is_empty() && !self.submit_deferred(sink) {
            return Ok(Admission::Stalled);
        }
        Ok(Admission::Budget)
    }

    /// Hands over what waited for room. False: something still does, or again.
    #[cold]
    pub fn submit_deferred(&mut self, sink: &mut impl Sink) -> bool {
        for _ in 0..self.deferred.len() {
            if let Some((slot, request)) = self.deferred.pop_front()
                && let Some(disk) = self.slots.get(slot).place.disk
            {
                self.submit(slot, disk, request, sink);
            }
        }
        self.deferred.is_empty()
    }

    #[inline]
    fn start(
        &mut self,
        ring: &mut impl Virtqueue,
        id: ChainId,
        batch: Batch<'_>,
        chain: &Chain,
        sink: &mut impl Sink,
    ) -> Result<(), RequestError> {
        let parse = Parse::new(chain, self.sizes)?;
        let Some(index) = self.slots.take() else {
            return Err(RequestError::TooMany(self.slots.size()));
        };
        let slot = self.slots.get_mut(index);
        let both = parse.fill(slot, chain, self.sizes);
        slot.id = id;
        slot.generation = self.generation;
        slot.taken = batch.now;
        let (lun, tag, attribute) = (parse.lun, slot.tag, slot.attribute);
        let address = Address::decode(lun);
        slot.address = address.unwrap_or(Address { target: 0, lun: 0 });
        if probes::wanted() {
            probes::started(&self.name, slot);
        }
        let place = address.and_then(|address| self.table.find(address));
        let Some(place) = place else {
            self.pass_fences(None);
            self.refuse(ring, index, Response::BadTarget);
            return Ok(());
        };
        slot.place = place;
        let address = slot.address;
        if !self.fences.is_empty()
            && let Some(response) = self.pass_fences(Some((address, tag)))
        {
            self.refuse(ring, index, response);
            return Ok(());
        }
        if both {
            // Data in both directions is not offered.
            self.refuse(ring, index, Response::Failure);
            return Ok(());
        }
        if let Some(tasks) = self.table.tasks(place)
            && tasks.admit(index, attribute) == scsi::Admission::Wait
        {
            self.slots.get_mut(index).state = State::Waits;
            return Ok(());
        }
        if self.go(ring, index, sink) {
            self.answered = true;
            self.go_on(ring, sink);
        }
        Ok(())
    }

    /// Carries a command out whose turn it is. True: it is finished already.
    #[inline]
    fn go(&mut self, ring: &mut impl Virtqueue, index: u32, sink: &mut impl Sink) -> bool {
        let slot = self.slots.get_mut(index);
        slot.state = State::Runs;
        let view = self.table.view(slot.place);
        let phase = slot.task.receive(view, slot.address.lun, NEXUS, &slot.cdb);
        let fits = match phase {
            Phase::Status => true,
            Phase::DataIn(bytes) => slot.reads && bytes <= slot.data_len,
            Phase::DataOut(bytes) => !slot.reads && bytes <= slot.data_len,
        };
        if !fits {
            slot.task.cancel();
            slot.cancelled = Some(Response::Overrun);
            self.finish(ring, index);
            return true;
        }
        // A list has at most as many segments as a chain.
        let count = u32::try_from(slot.data.len()).unwrap_or(u32::MAX);
        // SAFETY: the segments are checked guest memory, held for the slot's generation; list and task stay in the
        // slot, which is not given back before the task is finished.
        let step = unsafe { slot.task.run(slot.data.as_mut_ptr(), count, slot.data_len) };
        self.carry_out(ring, index, step, sink)
    }

    /// What a task asks for. True: it is finished.
    #[inline]
    fn carry_out(
        &mut self,
        ring: &mut impl Virtqueue,
        index: u32,
        mut step: Step,
        sink: &mut impl Sink,
    ) -> bool {
        loop {
            let slot = self.slots.get_mut(index);
            let task = &mut slot.task;
            match step {
                Step::Submit(request) => match slot.place.disk {
                    Some(disk) => {
                        self.submit(index, disk, request, sink);
                        return false;
                    }
                    // A unit that came after the disks were said.
                    None => step = task.completed(Err(Errno::NODEV)),
                },
                Step::Finished => {
                    self.finish(ring, index);
                    return true;
                }
                Step::Wait => return false,
                Step::Chore => match (slot.place.disk, task.chore()) {
                    (Some(disk), Some(chore)) => {
                        sink.call(disk, chore, self.token_base | u64::from(index));
                        return false;
                    }
                    _ => step = task.completed(Err(Errno::NODEV)),
                },
                // There is one initiator, and nobody whose tasks it could end but itself.
                Step::SettlePreempted => step = task.completed(Ok(())),
            }
        }
    }

    #[inline]
    fn submit(&mut self, index: u32, disk: usize, mut request: Request, sink: &mut impl Sink) {
        if sink.room(disk) == 0 {
            self.deferred.push_back((index, request));
            return;
        }
        let slot = self.slots.get_mut(index);
        self.counts.asks(slot, disk, &request);
        if tracepoints::request_submit::enabled() {
            probes::submitted(&self.name, slot, &request);
        }
        request.token = self.token_base | u64::from(index);
        // SAFETY: the segments are the slot's, see `go`, or the task's own, which stay until it is finished.
        unsafe { sink.submit(disk, request) };
    }

    /// A block request is done `now`.
    #[inline]
    pub fn complete(
        &mut self,
        ring: &mut impl Virtqueue,
        slot: u32,
        result: Result<(), Errno>,
        now: u64,
        sink: &mut impl Sink,
    ) {
        self.now = now;
        if result.is_err() {
            self.counts.failed(self.slots.get(slot));
        }
        let step = self.slots.get_mut(slot).task.completed(result);
        if self.carry_out(ring, slot, step, sink) {
            self.go_on(ring, sink);
        }
    }

    /// A command that waited for another's is told to go on.
    pub fn resume(&mut self, ring: &mut impl Virtqueue, token: u64, sink: &mut impl Sink) {
        let known = u32::try_from(token)
            .ok()
            .filter(|index| self.slots.used().any(|(used, _)| used == *index));
        if let Some(index) = known
            && self.slots.get(index).state == State::Runs
            && let Some(step) = self.slots.get_mut(index).task.resumed()
            && self.carry_out(ring, index, step, sink)
        {
            self.answered = true;
            self.go_on(ring, sink);
        }
    }

    /// Commands that waited for what was finished now.
    #[inline]
    fn go_on(&mut self, ring: &mut impl Virtqueue, sink: &mut impl Sink) {
        while let Some(index) = self.ready.pop_front() {
            self.go(ring, index, sink);
        }
    }

    /// Whether a command that is not done reads from its disk.
    #[must_use]
    pub fn is_read(&self, slot: u32) -> bool {
        self.slots.get(slot).kind == Some(Kind::Read)
    }

    /// The disk that a command, which is not done, has asked for something.
    #[must_use]
    pub fn disk(&self, slot: u32) -> Option<usize> {
        let slot = self.slots.get(slot);
        slot.kind.and(slot.place.disk)
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
        self.counts.end_batch(self.in_flight(), self.now);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.close_queue(&self.port);
    }
}

/// What a task attribute of the wire means; what has no meaning without an ACA condition is simple.
pub(crate) fn attribute_of(byte: u8) -> Attribute {
    match byte {
        crate::wire::ATTRIBUTE_ORDERED => Attribute::Ordered,
        crate::wire::ATTRIBUTE_HEAD => Attribute::HeadOfQueue,
        _ => Attribute::Simple,
    }
}
