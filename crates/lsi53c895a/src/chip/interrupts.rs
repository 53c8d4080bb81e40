//! Interrupt status: DSTAT, SIST0 and SIST1, two levels deep (manual, 2.2.16).
//!
//! While one interrupt waits to be read, further ones gather behind it and come forward when the first
//! level has been cleared. Masks decide what reaches the pin; what stops SCRIPTS is decided here too, since the
//! same two facts (fatal, enabled) decide both.

use crate::chip::registers::{sist0, sist1};

/// One set of the three registers.
#[derive(Clone, Copy, Default)]
struct InterruptStatusRegisters {
    dstat: u8,
    sist0: u8,
    sist1: u8,
}

/// The values of the registers DIEN, SIEN0 and SIEN1.
#[derive(Clone, Copy)]
pub struct EnabledInterrupts {
    pub dien: u8,
    pub sien0: u8,
    pub sien1: u8,
}

/// These stop SCRIPTS only when they are enabled.
const NOT_FATAL_0: u8 = sist0::CMP | sist0::SEL | sist0::RSL;
const NOT_FATAL_1: u8 = sist1::GEN | sist1::HTH;

/// Whether these SCSI interrupts stop SCRIPTS and show in ISTAT0: one of them is fatal, or enabled.
pub fn is_fatal_or_enabled(sist0: u8, sist1: u8, enabled: EnabledInterrupts) -> bool {
    sist0 & (!NOT_FATAL_0 | enabled.sien0) != 0 || sist1 & (!NOT_FATAL_1 | enabled.sien1) != 0
}

#[derive(Default)]
pub struct Interrupts {
    first_level: InterruptStatusRegisters,
    second_level: InterruptStatusRegisters,
}

impl Interrupts {
    /// Whether a SCSI interrupt waits to be read: ISTAT0.SIP.
    pub fn has_fatal_or_enabled_scsi_interrupt(&self, enabled: EnabledInterrupts) -> bool {
        is_fatal_or_enabled(self.first_level.sist0, self.first_level.sist1, enabled)
    }

    /// Whether a DMA interrupt waits to be read: ISTAT0.DIP.
    pub fn has_dma_interrupt(&self) -> bool {
        self.first_level.dstat != 0
    }

    /// Whether one that waits to be read asserts the interrupt pin.
    pub fn asserts_pin(&self, enabled: EnabledInterrupts) -> bool {
        self.first_level.dstat & enabled.dien != 0
            || self.first_level.sist0 & enabled.sien0 != 0
            || self.first_level.sist1 & enabled.sien1 != 0
    }

    /// The level for a new interrupt: the second while one of the first waits to be read.
    fn level_to_raise(&mut self, enabled: EnabledInterrupts) -> &mut InterruptStatusRegisters {
        if self.has_dma_interrupt() || self.has_fatal_or_enabled_scsi_interrupt(enabled) {
            &mut self.second_level
        } else {
            &mut self.first_level
        }
    }

    /// Sets bits of DSTAT.
    pub fn raise_dma(&mut self, bits: u8, enabled: EnabledInterrupts) {
        self.level_to_raise(enabled).dstat |= bits;
    }

    /// Sets bits of SIST0 and SIST1.
    pub fn raise_scsi(&mut self, sist0: u8, sist1: u8, enabled: EnabledInterrupts) {
        let level = self.level_to_raise(enabled);
        level.sist0 |= sist0;
        level.sist1 |= sist1;
    }

    /// Reads DSTAT, which clears it.
    pub fn take_dstat_and_promote(&mut self, enabled: EnabledInterrupts) -> u8 {
        let value = std::mem::take(&mut self.first_level.dstat);
        self.promote_second_level_if_first_clear(enabled);
        value
    }

    /// Reads SIST0, which clears it.
    pub fn take_sist0_and_promote(&mut self, enabled: EnabledInterrupts) -> u8 {
        let value = std::mem::take(&mut self.first_level.sist0);
        self.promote_second_level_if_first_clear(enabled);
        value
    }

    /// Reads SIST1, which clears it.
    pub fn take_sist1_and_promote(&mut self, enabled: EnabledInterrupts) -> u8 {
        let value = std::mem::take(&mut self.first_level.sist1);
        self.promote_second_level_if_first_clear(enabled);
        value
    }

    /// Moves the interrupts of the second level to the first, once those have been read.
    fn promote_second_level_if_first_clear(&mut self, enabled: EnabledInterrupts) {
        if !self.has_dma_interrupt() && !self.has_fatal_or_enabled_scsi_interrupt(enabled) {
            let second = std::mem::take(&mut self.second_level);
            self.first_level.dstat |= second.dstat;
            self.first_level.sist0 |= second.sist0;
            self.first_level.sist1 |= second.sist1;
        }
    }
}
