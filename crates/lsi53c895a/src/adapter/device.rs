//! The adapter as a PCI device of the vfio-user server, and as a source of requests for the backends.

use std::sync::Arc;

use crate::chip::{BusFault, Chip, RunOutcome, RunParameters};
use block::DiskIo;
use engine::Errno;
use vfio_user::wire::CONFIG_REGION;
use vfio_user::{ConfigSpace, DmaId, PciDevice, PciHost};
use virtqueue::GuestMemory;

use crate::adapter::chip_host::{ChipHost, PendingDma};
use crate::adapter::disks::DisksAndTasks;
use crate::adapter::memory_generations::MemoryGenerations;
use crate::adapter::{Disk, DiskAddressError, pci};

/// Instructions in one turn, which take about as long as a virtqueue's turn. A command takes a hundred.
const INSTRUCTIONS: u32 = 1000;

/// The pause of the chip after a turn without progress. Some programs wait in a loop for memory to change, and must not
/// slow down others on the iothread.
const THROTTLE_NS: u64 = 100_000;

/// Runs of the chip in one turn, so that requests that finish meanwhile are completed in the same turn.
const RUNS: usize = 16;

/// The host adapter.
pub struct Adapter {
    name: String,
    config: ConfigSpace,
    chip: Chip,
    disks: DisksAndTasks,
    memory: MemoryGenerations,
    pending_dma: PendingDma,
    now_ns: u64,
    /// The end of the pause after a turn without progress.
    throttled_until_ns: Option<u64>,
    /// The chip has not executed a reset yet.
    reset_pending: bool,
    /// No front-end is connected: the chip does not run until the next one connects.
    paused: bool,
}

impl Adapter {
    /// An adapter with this name in messages, and these disks on its bus.
    ///
    /// # Errors
    /// [`DiskAddressError`].
    pub fn new(name: &str, disks: &[Disk]) -> Result<Self, DiskAddressError> {
        // SAFETY: there are no regions.
        let nothing = unsafe { GuestMemory::new(Vec::new()) };
        Ok(Adapter {
            name: name.to_owned(),
            config: pci::new_config_space(),
            chip: Chip::new(),
            disks: DisksAndTasks::at_bus_addresses(disks)?,
            memory: MemoryGenerations::new(Arc::new(nothing.expect("an empty list has no flaws"))),
            pending_dma: PendingDma::default(),
            now_ns: 0,
            throttled_until_ns: None,
            reset_pending: false,
            paused: true,
        })
    }

    /// Sets the time, of a monotonic clock, and handles timeouts. To be called before each turn.
    pub fn advance_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.disks.advance_time_and_report_overdue_tasks(now_ns);
    }

    /// When it needs a turn even without an event.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        let chip = self.throttled_until_ns.or(self.chip.timer_due_ns());
        let chip = chip.filter(|_| !self.paused);
        [chip, self.disks.request_sense_deadline_ns()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether it has requests for [`Adapter::submit_queued_requests`].
    #[must_use]
    pub fn wants_submit(&self) -> bool {
        self.disks.queued_count() > 0
    }

    /// Submits requests to the backends, after a turn, or when there is room again. False: some wait for room.
    pub fn submit_queued_requests(&mut self, io: &mut dyn DiskIo) -> bool {
        self.disks.submit_queued(io)
    }

    /// The number of requests and calls that were submitted and are not done.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.disks.in_flight_count()
    }

    /// Completes a request. The adapter needs a turn then.
    pub fn complete_request(&mut self, slot: u32, result: Result<(), Errno>) {
        self.disks.complete_request(&mut self.memory, slot, result);
    }

    /// Sets the guest's interrupt line to the level of the chip's pin.
    fn update_interrupt_line(&mut self, host: &mut dyn PciHost) {
        let level = self
            .config
            .set_interrupt_status_and_get_line(self.chip.irq_level());
        host.set_irq_level(level);
    }

    /// One run of the chip. True: the turn is used up.
    fn run_chip_once(&mut self, host: &mut dyn PciHost) -> bool {
        let limits = RunParameters {
            instructions: INSTRUCTIONS,
            now_ns: self.now_ns,
        };
        let mut chip_host = ChipHost {
            host,
            memory: &mut self.memory,
            pending_dma: &mut self.pending_dma,
            waiting_at_start: self.disks.queued_count(),
            disks: &mut self.disks,
            is_master: self.config.is_bus_master(),
            config: &mut self.config,
        };
        let run = self.chip.run(&mut chip_host, limits);
        if run == RunOutcome::InVain {
            self.throttled_until_ns = Some(self.now_ns.saturating_add(THROTTLE_NS));
        }
        self.reset_pending = false;
        run != RunOutcome::Idle
    }

    /// Whether it pauses after a turn without progress.
    fn update_and_check_no_progress_pause(&mut self) -> bool {
        self.throttled_until_ns = self.throttled_until_ns.filter(|until| *until > self.now_ns);
        self.throttled_until_ns.is_some() && !self.reset_pending
    }
}

impl PciDevice for Adapter {
    fn name(&self) -> &str {
        &self.name
    }

    fn region_bytes(&self, region: u32) -> u64 {
        match region {
            0..=5 => self.config.bar_bytes(region as usize).into(),
            CONFIG_REGION => ConfigSpace::BYTES,
            _ => 0,
        }
    }

    /// Reads a window of the chip, or configuration space.
    fn read_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &mut [u8]) {
        match pci::bar_of_region(region) {
            Some(bar) => self.chip.read_window(bar, offset, data),
            None => self.config.read(offset, data),
        }
        // Reading interrupt registers clears them.
        self.update_interrupt_line(host);
    }

    /// Writes a window of the chip, or configuration space, which may move or disable the windows.
    fn write_region(&mut self, host: &mut dyn PciHost, region: u32, offset: u64, data: &[u8]) {
        match pci::bar_of_region(region) {
            Some(bar) => self.chip.write_window(bar, offset, data),
            None => {
                self.config.store_writable_bits(offset, data);
                self.chip.set_bars(pci::bar_addresses(&self.config));
            }
        }
        self.update_interrupt_line(host);
    }

    fn reset(&mut self, host: &mut dyn PciHost) {
        self.config.reset();
        self.chip.reset_and_clear_ram();
        self.chip.set_bars(pci::bar_addresses(&self.config));
        self.reset_pending = true;
        self.throttled_until_ns = None;
        self.update_interrupt_line(host);
    }

    fn is_reset_done(&self) -> bool {
        !self.reset_pending && self.chip.draining_task_count() == 0
    }

    fn on_memory_changed(&mut self, host: &mut dyn PciHost) {
        if self
            .memory
            .replace_map_and_detect_loss(host.mapped_guest_memory().clone())
        {
            self.chip.on_memory_removed();
        }
    }

    /// Passes the reply to an access of the chip to memory on to it.
    fn on_dma_done(
        &mut self,
        _: &mut dyn PciHost,
        id: DmaId,
        result: Result<Vec<u8>, rustix::io::Errno>,
    ) {
        if let Some((id, is_read)) = self.pending_dma.take_finished(id) {
            let data = result.as_ref().map(|data| match is_read {
                true => data.as_slice(),
                false => &[],
            });
            self.chip.on_dma_done(id, data.map_err(|_| BusFault));
        }
    }

    /// Passes finished tasks to the chip and runs it, until nothing is to do or the turn is over.
    fn do_pending_work(&mut self, host: &mut dyn PciHost) -> bool {
        self.paused = !host.is_connected();
        let timer_is_due = self
            .chip
            .timer_due_ns()
            .is_some_and(|due| due <= self.now_ns);
        let mut run_wanted = timer_is_due;
        let mut turn_is_over = self.update_and_check_no_progress_pause();
        for _ in 0..RUNS {
            while let Some((task, status)) = self.disks.take_next_finished() {
                self.chip.on_task_finished_or_drained(task, status);
            }
            run_wanted |= self.chip.wants_run();
            if !run_wanted || turn_is_over || self.paused {
                break;
            }
            run_wanted = false;
            turn_is_over = self.run_chip_once(host);
        }
        self.update_interrupt_line(host);
        self.disks.has_finished_tasks()
            || (self.chip.wants_run() && !self.update_and_check_no_progress_pause() && !self.paused)
    }
}
