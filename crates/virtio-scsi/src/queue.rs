//! A request queue: pops descriptor chains and submits block requests for their commands; turns completions into responses and
//! used entries.

mod cancel;
mod plain_transfer;
mod probes;
mod response;
mod stats;
mod task_commands;
mod transfer_runs;

use std::collections::VecDeque;
use std::sync::Arc;

use block::{DiskIo, Request, token};
use engine::{Completion, Errno};
use telemetry::queue::{AdmissionEnd, AdmitTimeAndKind, QueueName, QueueStats, RequestKind};
use virtqueue::{Chain, GuestMemory};

use crate::address::Address;
use crate::device::{Device, SenseAndCdbSizes};
use crate::error::AdmitError;
use crate::fast_path::FastPathSizes;
use crate::messages::{MessagePort, TmfSharedByQueues};
use crate::slots::Slots;
use crate::unit_table::UnitTable;
use cancel::RingCancellation;
use stats::CommandCounts;
use transfer_runs::{CompletionRun, SubmissionRun};

/// The address of a disk of a queue, and the statistics of its commands.
#[derive(Clone)]
pub struct DiskAddressAndStats {
    /// The address of its unit.
    pub address: Address,
    /// Statistics of commands to this disk, beside the queue's own. Queues on the same thread share them.
    pub stats: Arc<QueueStats>,
}

/// A request queue, without its ring.
pub struct Queue {
    name: QueueName,
    device: Arc<Device>,
    port: Arc<dyn MessagePort>,
    sizes: SenseAndCdbSizes,
    fast_path_sizes: FastPathSizes,
    table: UnitTable,
    slots: Slots,
    /// Used entries were pushed outside of completions, and are not published yet.
    pushed_outside_completions: bool,
    /// When the current batch was admitted. It only grows.
    batch_admit_time: AdmitTimeAndKind,
    /// The admit time that the current generation begins with.
    generation_start: AdmitTimeAndKind,
    /// Admit times of finished commands of older generations.
    finished_old: Vec<AdmitTimeAndKind>,
    /// Slots of commands whose turn has come.
    ready_slots: VecDeque<u32>,
    /// Block requests that their disk had no room for.
    deferred_requests: VecDeque<(u32, Request)>,
    /// Cancellations that wait for commands in the kernel.
    in_flight_cancellations: Vec<(u32, Arc<TmfSharedByQueues>)>,
    /// Cancellations of commands that may still be in the ring.
    ring_cancellations: Vec<RingCancellation>,
    /// The current time, in ticks.
    now: u64,
    counts: CommandCounts,
    submission_run: SubmissionRun,
    completion_run: CompletionRun,
}

/// The memory and the time of an admission.
#[derive(Clone, Copy)]
pub struct AdmitMemoryAndTime<'a> {
    /// The guest's memory.
    pub memory: &'a GuestMemory,
    /// Time of the admission, in [ticks](telemetry::counters::TickClock).
    pub now: u64,
}

// SAFETY: the requests that wait point to tasks and lists in its slots, and to guest memory that is held for them.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue called `name`, for a ring of `size` entries, registered with the device. `port` leads to it. It counts in `stats`,
    /// which no other running queue has.
    #[must_use]
    pub fn new_registered(
        name: QueueName,
        device: Arc<Device>,
        size: u16,
        port: Arc<dyn MessagePort>,
        stats: Arc<QueueStats>,
    ) -> Self {
        device.register_queue_port(port.clone());
        Queue {
            name,
            sizes: device.sense_and_cdb_sizes(),
            fast_path_sizes: FastPathSizes::new(device.sense_and_cdb_sizes()),
            table: UnitTable::new(&device, []),
            slots: Slots::with_capacity(size, port.clone()),
            device,
            port,
            pushed_outside_completions: false,
            batch_admit_time: AdmitTimeAndKind::default().next_tick(),
            generation_start: AdmitTimeAndKind::default(),
            finished_old: Vec::new(),
            ready_slots: VecDeque::new(),
            deferred_requests: VecDeque::new(),
            in_flight_cancellations: Vec::new(),
            ring_cancellations: Vec::new(),
            now: 0,
            counts: CommandCounts::new(stats),
            submission_run: SubmissionRun::default(),
            completion_run: CompletionRun::default(),
        }
    }

    /// Replaces its disks, unless commands are in flight: then the addresses are the same, in the same order, and nothing
    /// changes.
    pub fn set_disks_if_idle(&mut self, disks: &[DiskAddressAndStats]) {
        let addresses = disks.iter().map(|disk| disk.address);
        if self.in_flight_count() > 0 {
            let same = self.table.disk_addresses().eq(addresses);
            debug_assert!(same, "commands name disks by their indexes");
            return;
        }
        debug_assert_eq!(
            self.completion_run.commands, 0,
            "completed commands count for their disk"
        );
        self.table = UnitTable::new(&self.device, addresses);
        let stats = disks.iter().map(|disk| disk.stats.clone());
        self.counts.set_disk_stats(stats.collect());
    }

    /// Number of unfinished commands.
    #[must_use]
    #[inline]
    pub fn in_flight_count(&self) -> u32 {
        self.slots.in_flight_count()
    }

    /// Whether used entries were pushed other than by completions since the last call: then the ring has entries to publish.
    #[inline]
    pub fn take_pushed_outside_completions(&mut self) -> bool {
        std::mem::take(&mut self.pushed_outside_completions)
    }

    /// Whether requests wait for room: see [`submit_deferred`](Self::submit_deferred).
    #[must_use]
    #[inline]
    pub fn has_deferred(&self) -> bool {
        !self.deferred_requests.is_empty()
    }

    /// Begins a generation: commands admitted from now on have admit times from the returned one on, all others have earlier
    /// ones.
    pub fn begin_generation(&mut self) -> AdmitTimeAndKind {
        self.batch_admit_time = self.batch_admit_time.next_tick();
        self.generation_start = self.batch_admit_time;
        self.generation_start
    }

    /// The admit time of a finished command of an older generation, once for each.
    #[inline]
    pub fn pop_finished_of_older_generation(&mut self) -> Option<AdmitTimeAndKind> {
        self.finished_old.pop()
    }

    /// Slots of commands in flight that were admitted before the current generation.
    pub fn slots_of_older_generations(&self) -> impl Iterator<Item = u32> {
        let slots = self.slots.in_flight_slots();
        slots
            .filter(|(_, slot)| slot.admit_time < self.generation_start)
            .map(|(index, _)| index)
    }

    /// Admits up to `budget` commands from the ring. Commands that need no disk are pushed to the ring at once, the others
    /// go to `io`.
    ///
    /// # Errors
    /// When the guest broke the queue. Commands before the malformed one were admitted.
    #[inline]
    pub fn admit_from_ring(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: AdmitMemoryAndTime<'_>,
        chain: &mut Chain,
        io: &mut impl DiskIo,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        (self.sizes, self.now) = (self.device.sense_and_cdb_sizes(), batch.now);
        self.fast_path_sizes = FastPathSizes::new(self.sizes);
        self.count_and_end_completion_run();
        let admit_time = AdmitTimeAndKind::from_ticks(batch.now);
        // It never goes back, whatever the clock does: generations are distinguished by it.
        if admit_time > self.batch_admit_time {
            self.batch_admit_time = admit_time;
        }
        let admission = self.admit_chains(ring, batch, chain, io, budget);
        self.count_and_end_submission_run();
        self.counts
            .count_turn_and_set_in_flight(self.in_flight_count());
        admission
    }

    /// Pops up to `budget` chains and starts their commands, as long as the disks have room.
    #[inline(always)]
    fn admit_chains(
        &mut self,
        ring: &mut virtqueue::Queue,
        batch: AdmitMemoryAndTime<'_>,
        chain: &mut Chain,
        io: &mut impl DiskIo,
        budget: usize,
    ) -> Result<AdmissionEnd, AdmitError> {
        // Neither changes during an admission.
        let fast_path_allowed =
            self.ring_cancellations.is_empty() && !probes::is_start_or_submit_traced();
        for _ in 0..budget {
            if !self.deferred_requests.is_empty() && !self.submit_deferred(io) {
                return Ok(AdmissionEnd::Stalled);
            }
            let Some(id) = ring.pop(batch.memory, chain)? else {
                self.ring_cancellations.clear();
                return Ok(AdmissionEnd::Drained);
            };
            if !(fast_path_allowed && self.try_begin_plain_transfer(id, chain, io)) {
                self.parse_and_start_or_refuse(ring, id, chain, io)?;
            }
        }
        if !self.deferred_requests.is_empty() && !self.submit_deferred(io) {
            return Ok(AdmissionEnd::Stalled);
        }
        Ok(AdmissionEnd::Budget)
    }

    /// Submits requests that waited for room. False: some still wait, or wait again.
    #[cold]
    pub fn submit_deferred(&mut self, io: &mut impl DiskIo) -> bool {
        for _ in 0..self.deferred_requests.len() {
            if let Some((slot, request)) = self.deferred_requests.pop_front()
                && let Some(disk) = self.slots.get(slot).unit_index.disk
            {
                self.submit_or_defer(slot, disk, request, io);
            }
        }
        self.deferred_requests.is_empty()
    }

    /// Completes block requests of this queue at `now`. `on_failure` is called for each failed one before its slot changes.
    /// Commands count at the [end of the batch](Self::count_completion_batch).
    pub fn complete_block_requests(
        &mut self,
        ring: &mut virtqueue::Queue,
        done: &[Completion],
        now: u64,
        io: &mut impl DiskIo,
        mut on_failure: impl FnMut(&Queue, u32, Errno),
    ) {
        // Only commands with tasks have probes at their end.
        let untraced = !probes::is_end_traced();
        for completion in done {
            let (slot, result) = (token::request_number(completion.token), completion.result);
            if untraced && result.is_ok() && self.try_complete_plain_transfer(ring, slot, now) {
                continue;
            }
            if let Err(errno) = result {
                on_failure(self, slot, errno);
            }
            self.complete_command_step(ring, slot, result, now, io);
        }
    }

    /// Whether the unfinished command in a slot reads from its disk.
    #[must_use]
    pub fn is_read(&self, slot: u32) -> bool {
        let slot = self.slots.get(slot);
        match self.disk_of_plain_transfer(slot) {
            Some(_) => !slot.is_write,
            None => slot.kind == Some(RequestKind::Read),
        }
    }

    /// The index of the disk that the unfinished command in a slot uses. `None`: it uses none.
    #[must_use]
    pub fn disk_index_of_command(&self, slot: u32) -> Option<u32> {
        let slot = self.slots.get(slot);
        match self.disk_of_plain_transfer(slot) {
            Some(_) => Some(slot.disk),
            None => slot.kind.and(slot.unit_index.disk),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Its statistics.
    #[must_use]
    #[inline]
    pub fn stats(&self) -> &QueueStats {
        &self.counts.queue
    }

    /// Counts the completions so far, which are published.
    #[inline]
    pub fn count_completion_batch(&mut self) {
        self.count_and_end_completion_run();
        self.counts
            .set_in_flight_count(self.slots.in_flight_count());
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.device.unregister_queue(&self.port);
    }
}
