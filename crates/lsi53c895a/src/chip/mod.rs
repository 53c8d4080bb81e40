//! The LSI53C895A, a PCI to Ultra2 SCSI host adapter, as a pure state machine.
//!
//! A guest drives it as its manual says: it writes registers, and leaves programs for the chip's own
//! processor (SCRIPTS) in memory, which select targets, send messages and commands and move data. The
//! [`Chip`] carries them out. It makes no system call, reads no clock, knows no file and no thread: guest
//! memory is behind [`PciBus`], disks are behind [`Targets`], and the caller says when to [`run`](Chip::run)
//! and for how long.
//!
//! **Data moves once.** The targets on this SCSI bus enter the data phase right after the command, and a block
//! move of data only collects the addresses of guest memory. When the command's data is complete the target
//! disconnects, and the whole request goes to the disk with the guest's own memory; when it is done, the
//! target reselects and goes straight to the status. No guest can tell: what is in its buffers before
//! GOOD status means nothing. `docs/lsi53c895a.md` says what drivers make of it.
//!
//! **Nothing calls back.** Writing a register only takes note; programs run in [`Chip::run`]. What the chip reads
//! from or writes to its own registers is served inside, by the same two functions, and starts no program
//! in the middle of another. Resets and aborts are carried out between instructions. An aborted task keeps
//! its memory until the disk has let go of it, and the SCSI bus stands still until then.
//!
//! PCI configuration space, the wiring of INTx and the order of replies on a socket are decided above.

mod command_phase;
mod host_traits;
mod interrupts;
mod memory_access;
mod messages;
mod pause_reason;
mod register_access;
mod register_effects;
mod registers;
mod reset;
mod scripts;
mod scsi_bus;
mod task_data;
mod tasks;
mod timer;

pub use host_traits::{
    AbortOutcome, BusFault, CheckConditionCause, DmaId, PciBus, PhaseAfterCommand, ResetScope,
    TagAttribute, TargetAndLun, Targets, TaskSlotId, TaskStartOutcome,
};
pub use task_data::MAX_SEGMENTS;
pub use tasks::MAX_TASKS;

use interrupts::{EnabledInterrupts, Interrupts};
use memory_access::{DmaState, RAM_BYTES};
use pause_reason::PauseReason;
use registers::{
    DCNTL, DIEN, ISTAT0, ISTAT1, Registers, SIEN0, SIEN1, dcntl, dstat, istat0, istat1, sist1,
};
use reset::DeferredResets;
use scripts::{ScriptsCpu, ScriptsCpuState};
use scsi_bus::BusState;
use tasks::TaskTable;
use timer::GeneralPurposeTimer;

/// A PCI window of the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// BAR 0: the registers in I/O space, 256 bytes.
    Io,
    /// BAR 1: the registers in memory space, 1 KiB, four times the same.
    Registers,
    /// BAR 2: SCRIPTS RAM, 8 KiB.
    Ram,
}

/// Where the windows are, as configuration space says; 0: nowhere. The chip needs to know, since its programs
/// address it as they address memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BarAddresses {
    /// BAR 0, without its flags.
    pub io: u32,
    /// BAR 1.
    pub registers: u32,
    /// BAR 2.
    pub ram: u32,
}

/// How long a run may be, and the present time.
#[derive(Clone, Copy, Debug)]
pub struct RunParameters {
    /// Instructions; one that moves much counts once more per 4 KiB.
    pub instructions: u32,
    /// The time, on a clock that does not go back.
    pub now_ns: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// Nothing to do until a register is written, a task finishes, memory arrives or the timer is due.
    Idle,
    /// The limits are used up, and tasks were added or removed meanwhile, or [`PciBus::should_end_run_to_submit`]: run again
    /// after others.
    Again,
    /// The limits are used up without progress: run again after a pause. Some drivers' programs wait in a loop for
    /// memory to change.
    InVain,
}

/// Instructions between two checks for events and whether the run is to end: about as many as a command takes until its
/// disk has it.
const EVENT_CHECK_INTERVAL: u32 = 32;

/// One LSI53C895A with its SCSI bus.
///
/// After a write, [`Chip::on_task_finished_or_drained`], [`Chip::on_dma_done`] or when a timer is due: [`Chip::run`] if
/// [`Chip::wants_run`], then tell the guest what [`Chip::irq_level`] says. A register access may be answered before the
/// run.
pub struct Chip {
    regs: Registers,
    ram: Box<[u8; RAM_BYTES]>,
    interrupts: Interrupts,
    cpu: ScriptsCpu,
    bus_state: BusState,
    tasks: TaskTable,
    dma: DmaState,
    bars: BarAddresses,
    /// The lowest address of its windows in memory.
    lowest_window: u64,
    timer: GeneralPurposeTimer,
    deferred_resets: DeferredResets,
    /// What is left of the run's limit.
    instructions_left: u32,
    /// Something happened that a run may act upon.
    run_wanted: bool,
}

impl Chip {
    /// As after power-on.
    pub fn new() -> Self {
        Chip {
            regs: Registers::new(),
            ram: Box::new([0; RAM_BYTES]),
            interrupts: Interrupts::default(),
            cpu: ScriptsCpu::default(),
            bus_state: BusState::Free,
            tasks: TaskTable::new(),
            dma: DmaState::Idle,
            bars: BarAddresses::default(),
            lowest_window: u64::MAX,
            timer: GeneralPurposeTimer::Off,
            deferred_resets: DeferredResets::default(),
            instructions_left: 0,
            run_wanted: false,
        }
    }

    /// PCI reset. Tasks in flight are aborted by the next run; [`Chip::draining_task_count`] says when they are gone.
    pub fn reset_and_clear_ram(&mut self) {
        self.ram.fill(0);
        self.soft_reset();
    }

    /// Sets where the windows are, since configuration space was written.
    pub fn set_bars(&mut self, bars: BarAddresses) {
        self.bars = bars;
        let windows = [bars.ram, bars.registers].map(u64::from);
        let lowest = windows.into_iter().filter(|base| *base != 0).min();
        self.lowest_window = lowest.unwrap_or(u64::MAX);
    }

    /// Reads a window; what lies outside of it is all ones.
    pub fn read_window(&mut self, bar: Bar, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        for (i, byte) in (offset..=u64::MAX).zip(data) {
            *byte = match bar {
                Bar::Io if i < 0x100 => self.read_register(i.to_le_bytes()[0]),
                Bar::Registers if i < 0x400 => self.read_register(i.to_le_bytes()[0]),
                Bar::Ram => usize::try_from(i)
                    .ok()
                    .and_then(|i| self.ram.get(i).copied())
                    .unwrap_or(0xff),
                _ => 0xff,
            };
        }
    }

    /// Writes a window; what lies outside of it is dropped.
    pub fn write_window(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        for (i, byte) in (offset..=u64::MAX).zip(data) {
            match bar {
                Bar::Io if i < 0x100 => self.write_register(i.to_le_bytes()[0], *byte),
                Bar::Registers if i < 0x400 => self.write_register(i.to_le_bytes()[0], *byte),
                Bar::Ram => {
                    if let Some(place) = usize::try_from(i).ok().and_then(|i| self.ram.get_mut(i)) {
                        *place = *byte;
                    }
                }
                _ => {}
            }
        }
    }

    /// The level of the interrupt pin.
    pub fn irq_level(&self) -> bool {
        !self.regs.has_bits(DCNTL, dcntl::IRQD)
            && !self.regs.has_bits(ISTAT1, istat1::SYNC_IRQD)
            && (self.regs.has_bits(ISTAT0, istat0::INTF)
                || self.interrupts.asserts_pin(self.enabled_interrupts()))
    }

    /// Whether an event since the last run requires another run.
    pub fn wants_run(&self) -> bool {
        self.run_wanted
    }

    /// When a run is due for a timer's sake.
    pub fn timer_due_ns(&self) -> Option<u64> {
        self.timer.due_ns()
    }

    /// Aborted tasks whose memory is still in use.
    pub fn draining_task_count(&self) -> usize {
        self.tasks.draining_task_count()
    }

    /// Tasks whose memory is in use, aborted or not.
    pub fn in_flight_task_count(&self) -> usize {
        self.tasks.in_flight_task_count()
    }

    /// Guest memory that [`PciBus::first_contiguous_part`] returned is removed, once the tasks have ended that run already. A task whose
    /// data is still being collected ends in CHECK CONDITION, since it may not use the memory any more.
    pub fn on_memory_removed(&mut self) {
        self.tasks.drop_memory_of_collecting_tasks();
    }

    /// A task that was to finish later has this status byte; or one that was aborted no longer uses its memory.
    pub fn on_task_finished_or_drained(&mut self, task: TaskSlotId, status: u8) {
        let connected = self.connection().and_then(|connection| connection.task) == Some(task);
        self.tasks.mark_finished_or_release(task, status, connected);
        self.run_wanted = true;
    }

    /// Runs the chip, within limits.
    pub fn run<H: PciBus + Targets>(&mut self, host: &mut H, limits: RunParameters) -> RunOutcome {
        self.run_wanted = false;
        self.instructions_left = limits.instructions;
        let change_count = self.tasks.change_count();
        if self.timer.arm_or_take_expired(limits.now_ns) {
            self.raise_scsi_interrupt(0, sist1::GEN);
        }
        loop {
            self.execute_deferred_resets(host);
            if !matches!(self.dma, DmaState::Idle) {
                if self.waits_for_memory() {
                    return RunOutcome::Idle;
                }
                if matches!(self.dma, DmaState::Failed) {
                    self.dma = DmaState::Idle;
                    self.raise_bus_fault();
                }
            }
            if self.cpu.state == ScriptsCpuState::Stopped {
                self.try_reselect_by_interrupt();
                return RunOutcome::Idle;
            }
            if self.instructions_left.is_multiple_of(EVENT_CHECK_INTERVAL)
                && self.instructions_left > 0
                && host.should_end_run_to_submit()
            {
                self.run_wanted = true;
                return RunOutcome::Again;
            }
            if self.instructions_left == 0 {
                self.run_wanted = true;
                return match self.tasks.change_count() == change_count {
                    true => RunOutcome::InVain,
                    false => RunOutcome::Again,
                };
            }
            match self.execute_until_events(host) {
                Ok(()) | Err(PauseReason::Stopped | PauseReason::Memory) => {}
                Err(PauseReason::Limit) => self.instructions_left = 0,
                Err(PauseReason::Bus) if self.deferred_resets.bus_reset => {}
                Err(PauseReason::Bus) => return RunOutcome::Idle,
            }
        }
    }

    /// Executes instructions until other events must be checked.
    #[inline]
    fn execute_until_events<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        loop {
            if self.cpu.state == ScriptsCpuState::Fetch && self.run_fast_path(host) {
                return Ok(());
            }
            self.instructions_left -= 1;
            self.step_program(host)?;
            let goes_on = self.cpu.state == ScriptsCpuState::Fetch
                && !self.deferred_resets.bus_reset
                && matches!(self.dma, DmaState::Idle);
            if !goes_on || self.instructions_left.is_multiple_of(EVENT_CHECK_INTERVAL) {
                return Ok(());
            }
        }
    }

    /// Counts one more instruction, for a step that does the work of several.
    pub(crate) fn charge_one_instruction(&mut self) -> Result<(), PauseReason> {
        self.instructions_left = self
            .instructions_left
            .checked_sub(1)
            .ok_or(PauseReason::Limit)?;
        Ok(())
    }

    /// The masks DIEN, SIEN0 and SIEN1: interrupts that the guest has enabled, whether they are pending or not.
    pub(crate) fn enabled_interrupts(&self) -> EnabledInterrupts {
        EnabledInterrupts {
            dien: self.regs.get(DIEN),
            sien0: self.regs.get(SIEN0),
            sien1: self.regs.get(SIEN1),
        }
    }

    /// Raises a DMA interrupt, which always stops SCRIPTS.
    pub(crate) fn raise_dma_interrupt(&mut self, bits: u8) {
        debug_assert!(bits & dstat::DFE == 0);
        self.interrupts.raise_dma(bits, self.enabled_interrupts());
        self.stop_program();
    }

    /// Raises a SCSI interrupt, which stops SCRIPTS if it is fatal or enabled.
    pub(crate) fn raise_scsi_interrupt(&mut self, sist0: u8, sist1: u8) {
        let enabled = self.enabled_interrupts();
        self.interrupts.raise_scsi(sist0, sist1, enabled);
        if interrupts::is_fatal_or_enabled(sist0, sist1, enabled) {
            self.stop_program();
        }
    }
}

impl Default for Chip {
    fn default() -> Self {
        Chip::new()
    }
}
