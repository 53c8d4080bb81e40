//! Generations of requests: a queue continues when its memory or its disk changes, and releases the old ones when their last
//! request has left.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{AttachedDisk, IoContext};
use virtqueue::GuestMemory;

use super::Vring;
use crate::messages::ScsiDisk;
use crate::older_generations::GenerationResources;

impl Vring {
    /// Replaces the map of the guest's memory. Requests in flight keep the old map.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>, io: &mut IoContext) {
        let remapped = self.ring.remap(&memory);
        let old = std::mem::replace(&mut self.memory, memory);
        self.begin_generation(old, Vec::new(), io);
        if let Err(error) = remapped {
            self.mark_broken_and_report(&error);
        }
    }

    /// Replaces its disk. Requests in flight use the old one until they are done.
    pub fn replace_disk(&mut self, new: AttachedDisk, io: &mut IoContext) {
        let old = self.device.replace_disk(new);
        self.retire_or_detach_disks(vec![old], io);
    }

    /// The same for all disks of a controller. If units were added or removed, nothing is in flight.
    pub fn replace_disks(
        &mut self,
        disks: Vec<ScsiDisk>,
        attached: Vec<AttachedDisk>,
        io: &mut IoContext,
    ) {
        let old = self.device.replace_disks(disks, attached);
        self.retire_or_detach_disks(old, io);
    }

    /// Keeps disks until the requests in flight are done.
    fn retire_or_detach_disks(&mut self, mut disks: Vec<AttachedDisk>, io: &mut IoContext) {
        let in_flight = self.device.in_flight_counts();
        if in_flight.requests == in_flight.parked {
            // Retries of parked requests go to the new disks.
            for disk in self.older_generations.take_disks().chain(disks.drain(..)) {
                io.detach(disk);
            }
        }
        self.begin_generation(self.memory.clone(), disks, io);
    }

    /// Notifies `reply` when all requests admitted so far are done. The queue continues meanwhile.
    pub fn reply_when_current_requests_end(&mut self, reply: Sender<()>, io: &mut IoContext) {
        self.begin_generation(self.memory.clone(), Vec::new(), io);
        self.older_generations.reply_when_settled(reply);
        self.release_and_settle_old_generations(io);
    }

    /// Begins a generation, which uses the present memory. Requests in flight belong to an older one, which uses `memory`
    /// and the `disks` that were replaced.
    fn begin_generation(
        &mut self,
        memory: Arc<GuestMemory>,
        disks: Vec<AttachedDisk>,
        io: &mut IoContext,
    ) {
        // Before the old one may leave: a map that both use stays registered.
        self.register_memory_if_fixed_buffers(io);
        let in_flight =
            self.device.in_flight_counts().requests - self.older_generations.in_flight_count();
        let end = self.device.begin_generation();
        if let Some(unused) = self.older_generations.end_current_generation(
            end,
            in_flight,
            GenerationResources { memory, disks },
        ) {
            self.release_generation_resources(unused, io);
        }
    }

    /// Releases memory and disks that no request uses any more.
    fn release_generation_resources(&self, unused: GenerationResources, io: &mut IoContext) {
        self.unregister_memory_if_fixed_buffers(&unused.memory, io);
        for disk in unused.disks {
            io.detach(disk);
        }
    }

    /// Releases what older generations do not use any more, since requests may have left the queue or been parked.
    #[inline]
    pub(super) fn release_and_settle_old_generations(&mut self, io: &mut IoContext) {
        if !self.older_generations.is_settled() {
            self.release_and_settle_old_generations_slow(io);
        }
    }

    /// Counts requests of older generations that have left the queue, and releases what none of them uses any more.
    fn release_and_settle_old_generations_slow(&mut self, io: &mut IoContext) {
        while let Some((admitted, requests)) = self.device.pop_finished_of_older_generation() {
            if let Some(unused) = self
                .older_generations
                .remove_finished_and_take_unused(admitted, requests)
            {
                self.release_generation_resources(unused, io);
            }
        }
        if !self.older_generations.has_settle_waiters() {
            return;
        }
        self.older_generations
            .reply_if_only_parked(self.device.older_generation_parked_count());
        // Each turn: a slot whose request has left may be taken by a later request, which has to wait at its gate. After the replies, all
        // requests have to.
        let waited_for = match self.older_generations.has_settle_waiters() {
            true => self.device.slots_of_older_generations(),
            false => Vec::new(),
        };
        io.let_requests_bypass_gates(self.source_index, waited_for);
    }

    /// Registers the memory of the current generation.
    pub fn register_memory_if_fixed_buffers(&self, io: &mut IoContext) {
        let Some(disk) = self.device.disk_for_fixed_buffers() else {
            return;
        };
        if !self.fixed_buffers {
            return;
        }
        let regions = self.memory.regions().iter();
        let ranges = regions.map(|region| {
            let len = usize::try_from(region.len).expect("what is mapped fits an address space");
            (region.host as usize, len)
        });
        // SAFETY: each generation keeps its map until it has left, which holds its regions.
        unsafe { io.register_memory_or_count_user(disk, memory_map_key(&self.memory), ranges) };
    }

    /// Ends the registration of a memory map.
    pub(super) fn unregister_memory_if_fixed_buffers(
        &self,
        memory: &Arc<GuestMemory>,
        io: &mut IoContext,
    ) {
        if self.fixed_buffers {
            io.remove_memory_user(memory_map_key(memory));
        }
    }
}

/// Key of a memory map, as long as it is kept.
fn memory_map_key(memory: &Arc<GuestMemory>) -> usize {
    Arc::as_ptr(memory) as usize
}
