//! The chip's access to guest memory and to the disks: its interfaces `PciBus` and `Targets`, implemented by the
//! adapter.

use std::ptr::NonNull;

use crate::chip::{
    AbortOutcome, BusFault, CheckConditionCause, DmaId, PciBus, PhaseAfterCommand, ResetScope,
    TagAttribute, TargetAndLun, Targets, TaskSlotId, TaskStartOutcome,
};
use vfio_user::{ConfigSpace, PciHost};

use crate::adapter::disks::DisksAndTasks;
use crate::adapter::memory_generations::MemoryGenerations;

/// Waiting requests with which an idle disk should start: the size of the first batch of the backends.
const FIRST_REQUESTS: usize = engine::FIRST_BATCH as usize;

/// Accesses to memory by message that have no reply yet: the chip waits for one at a time, and may have abandoned
/// others.
#[derive(Default)]
pub struct PendingDma {
    last: DmaId,
    /// The number of the transport, that of the chip, and whether it is a read.
    list: Vec<(vfio_user::DmaId, DmaId, bool)>,
}

impl PendingDma {
    /// Adds an access that the transport has started. Returns a number of it for the chip.
    fn add(&mut self, transport_id: vfio_user::DmaId, is_read: bool) -> DmaId {
        self.last += 1;
        self.list.push((transport_id, self.last, is_read));
        self.last
    }

    /// Removes an access that has finished. Returns the chip's number of it, and whether it was a read.
    pub fn take_finished(&mut self, transport_id: vfio_user::DmaId) -> Option<(DmaId, bool)> {
        let index = self
            .list
            .iter()
            .position(|(pending, ..)| *pending == transport_id)?;
        let (_, chip_id, is_read) = self.list.swap_remove(index);
        Some((chip_id, is_read))
    }
}

/// The parts of the adapter that the chip uses while it runs.
pub struct ChipHost<'a> {
    pub host: &'a mut dyn PciHost,
    pub memory: &'a mut MemoryGenerations,
    pub pending_dma: &'a mut PendingDma,
    pub disks: &'a mut DisksAndTasks,
    pub config: &'a mut ConfigSpace,
    /// The guest lets the chip access memory.
    pub is_master: bool,
    /// Requests that waited for a backend when the run began.
    pub waiting_at_start: usize,
}

impl PciBus for ChipHost<'_> {
    fn first_contiguous_part(
        &mut self,
        addr: u64,
        len: usize,
        _write: bool,
    ) -> Option<(NonNull<u8>, usize)> {
        self.memory
            .first_contiguous_part(addr, len)
            .filter(|_| self.is_master)
    }

    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool {
        self.is_master && self.memory.read_if_mapped(addr, data)
    }

    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool {
        self.is_master && self.memory.write_if_mapped(addr, data)
    }

    #[inline]
    fn read_word_if_mapped(&mut self, addr: u64) -> Option<u32> {
        if !self.is_master {
            return None;
        }
        self.memory.read_word_if_mapped(addr)
    }

    #[inline]
    fn write_word_if_mapped(&mut self, addr: u64, word: u32) -> bool {
        self.is_master && self.memory.write_word_if_mapped(addr, word)
    }

    fn start_dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, BusFault> {
        if !self.is_master {
            return Err(BusFault);
        }
        Ok(self
            .pending_dma
            .add(self.host.begin_dma_read_by_messages(addr, len), true))
    }

    fn start_dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, BusFault> {
        if !self.is_master {
            return Err(BusFault);
        }
        let transport_id = self.host.begin_dma_write_by_messages(addr, data.to_vec());
        Ok(self.pending_dma.add(transport_id, false))
    }

    /// Ends the run so that an idle disk gets its first requests before SCRIPTS have set up the others.
    fn should_end_run_to_submit(&self) -> bool {
        self.waiting_at_start < FIRST_REQUESTS
            && self.disks.queued_count() >= FIRST_REQUESTS
            && self.disks.in_flight_count() == 0
    }

    /// Signals the interrupt during the run: until the guest handles it, SCRIPTS can complete further commands.
    fn on_interrupt_asserted(&mut self) {
        let level = self.config.set_interrupt_status_and_get_line(true);
        self.host.set_irq_level(level);
    }
}

impl Targets for ChipHost<'_> {
    fn has_target(&mut self, target: u8) -> bool {
        self.disks.has_target(target)
    }

    fn receive_command(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        self.disks
            .receive_command_and_take_sense(task, nexus, attribute, cdb)
    }

    fn replace_by_failing_task(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        refusal: CheckConditionCause,
    ) {
        self.disks.replace_by_failing_task(task, nexus, refusal);
    }

    fn run_or_queue_task(
        &mut self,
        task: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome {
        self.disks
            .run_or_queue_task(self.memory, task, segments, len)
    }

    fn abort_task(&mut self, task: TaskSlotId) -> AbortOutcome {
        self.disks.abort_task(self.memory, task)
    }

    fn release_finished_task(&mut self, task: TaskSlotId, reported: bool) {
        self.disks.release_slot_and_update_sense(task, reported);
    }

    fn reset_units(&mut self, scope: ResetScope) {
        self.disks.reset_units(scope);
    }
}
