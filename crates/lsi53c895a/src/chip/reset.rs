//! Resets of the chip and of the SCSI bus, and their deferred part between two instructions.
//!
//! A register write resets registers at once, but does not call targets: that waits for the next
//! run. So a reset that is caused by a transfer does not interrupt that transfer.

use crate::chip::core::Chip;
use crate::chip::link::Link;
use crate::chip::memory::Dma;
use crate::chip::ports::{Bus, Reset, Targets};
use crate::chip::registers::{Registers, sist0};
use crate::chip::scripts::Cpu;
use crate::chip::timers::Timers;

/// Deferred work of a register write.
#[derive(Clone, Copy, Default)]
pub struct Pending {
    /// All tasks are to be aborted, and the targets reset.
    pub bus_reset: bool,
    /// SIST0.RST is to be set when the aborted tasks are gone.
    pub announce: bool,
}

impl Chip {
    /// ISTAT0.SRST, or PCI reset: registers as after power-on, nothing runs, and no task is left.
    pub(crate) fn soft_reset(&mut self) {
        self.regs = Registers::new();
        self.interrupts = Default::default();
        self.cpu = Cpu::default();
        self.link = Link::Free;
        self.dma = Dma::Idle;
        self.timers = Timers::Off;
        self.pending = Pending {
            bus_reset: true,
            announce: false,
        };
        self.awake = true;
    }

    /// The RST line goes up. The interrupt says that memory is no longer touched, so it may have to wait for disks.
    pub(crate) fn assert_bus_reset(&mut self) {
        self.link = Link::Free;
        self.dma = Dma::Idle;
        self.cpu.stop();
        self.pending.bus_reset = true;
        if self.tasks.in_flight() == 0 {
            self.interrupt_scsi(sist0::RST, 0);
        } else {
            self.pending.announce = true;
        }
        self.awake = true;
    }

    /// What resets left to do.
    pub(crate) fn carry_out_resets<H: Bus + Targets>(&mut self, host: &mut H) {
        if std::mem::take(&mut self.pending.bus_reset) {
            self.tasks.abort_where(host, |_| true);
            host.reset(Reset::Bus);
        }
        if self.pending.announce && self.tasks.draining() == 0 {
            self.pending.announce = false;
            self.interrupt_scsi(sist0::RST, 0);
        }
    }
}
