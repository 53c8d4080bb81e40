//! Resets of the chip and of the SCSI bus, and their deferred part between two instructions.
//!
//! A register write resets registers at once, but does not call targets: that waits for the next
//! run. So a reset that is caused by a transfer does not interrupt that transfer.

use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, ResetScope, Targets};
use crate::chip::memory_access::DmaState;
use crate::chip::registers::{Registers, sist0};
use crate::chip::scripts::ScriptsCpu;
use crate::chip::scsi_bus::BusState;
use crate::chip::timer::GeneralPurposeTimer;

/// Parts of resets that wait for the next run.
#[derive(Clone, Copy, Default)]
pub struct DeferredResets {
    /// All tasks are to be aborted, and the targets reset.
    pub bus_reset: bool,
    /// SIST0.RST is to be set when the aborted tasks are gone.
    pub interrupt_when_drained: bool,
}

impl Chip {
    /// Resets the chip, by ISTAT0.SRST or PCI: registers as after power-on, nothing runs, and no task is left.
    pub(crate) fn soft_reset(&mut self) {
        self.regs = Registers::new();
        self.interrupts = Default::default();
        self.cpu = ScriptsCpu::default();
        self.bus_state = BusState::Free;
        self.dma = DmaState::Idle;
        self.timer = GeneralPurposeTimer::Off;
        self.deferred_resets = DeferredResets {
            bus_reset: true,
            interrupt_when_drained: false,
        };
        self.run_wanted = true;
    }

    /// Raises the RST line. The interrupt says that memory is no longer touched, so it may have to wait for disks.
    pub(crate) fn begin_bus_reset(&mut self) {
        self.bus_state = BusState::Free;
        self.dma = DmaState::Idle;
        self.cpu.stop();
        self.deferred_resets.bus_reset = true;
        if self.tasks.in_flight_task_count() == 0 {
            self.raise_scsi_interrupt(sist0::RST, 0);
        } else {
            self.deferred_resets.interrupt_when_drained = true;
        }
        self.run_wanted = true;
    }

    /// Executes what resets have deferred: aborts the tasks, and interrupts when their memory is no longer in use.
    pub(crate) fn execute_deferred_resets<H: PciBus + Targets>(&mut self, host: &mut H) {
        if std::mem::take(&mut self.deferred_resets.bus_reset) {
            self.tasks.abort_where(host, |_| true);
            host.reset_units(ResetScope::Bus);
        }
        if self.deferred_resets.interrupt_when_drained && self.tasks.draining_task_count() == 0 {
            self.deferred_resets.interrupt_when_drained = false;
            self.raise_scsi_interrupt(sist0::RST, 0);
        }
    }
}
