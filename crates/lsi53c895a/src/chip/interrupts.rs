//! Interrupt status: DSTAT, SIST0 and SIST1, two levels deep (manual, 2.2.16).
//!
//! While one interrupt waits to be read, further ones gather behind it and come forward when the first
//! level has been cleared. Masks decide what reaches the pin; what stops SCRIPTS is decided here too, since the
//! same two facts (fatal, enabled) decide both.

use crate::chip::registers::{sist0, sist1};

/// One set of the three registers.
#[derive(Clone, Copy, Default)]
struct Level {
    dstat: u8,
    sist0: u8,
    sist1: u8,
}

/// What SIEN0, SIEN1 and DIEN say.
#[derive(Clone, Copy)]
pub struct Enabled {
    pub dien: u8,
    pub sien0: u8,
    pub sien1: u8,
}

/// These stop SCRIPTS only when they are enabled.
const NOT_FATAL_0: u8 = sist0::CMP | sist0::SEL | sist0::RSL;
const NOT_FATAL_1: u8 = sist1::GEN | sist1::HTH;

/// Do these SCSI interrupts stop SCRIPTS, and show in ISTAT0?
pub fn counts(sist0: u8, sist1: u8, enabled: Enabled) -> bool {
    sist0 & (!NOT_FATAL_0 | enabled.sien0) != 0 || sist1 & (!NOT_FATAL_1 | enabled.sien1) != 0
}

#[derive(Default)]
pub struct Interrupts {
    now: Level,
    next: Level,
}

impl Interrupts {
    /// Is a SCSI interrupt to be read?
    pub fn sip(&self, enabled: Enabled) -> bool {
        counts(self.now.sist0, self.now.sist1, enabled)
    }

    /// Is a DMA interrupt to be read?
    pub fn dip(&self) -> bool {
        self.now.dstat != 0
    }

    /// Does one of those that are to be read assert the pin?
    pub fn asserted(&self, enabled: Enabled) -> bool {
        self.now.dstat & enabled.dien != 0
            || self.now.sist0 & enabled.sien0 != 0
            || self.now.sist1 & enabled.sien1 != 0
    }

    fn level(&mut self, enabled: Enabled) -> &mut Level {
        if self.dip() || self.sip(enabled) {
            &mut self.next
        } else {
            &mut self.now
        }
    }

    pub fn raise_dma(&mut self, bits: u8, enabled: Enabled) {
        self.level(enabled).dstat |= bits;
    }

    pub fn raise_scsi(&mut self, sist0: u8, sist1: u8, enabled: Enabled) {
        let level = self.level(enabled);
        level.sist0 |= sist0;
        level.sist1 |= sist1;
    }

    pub fn take_dstat(&mut self, enabled: Enabled) -> u8 {
        let value = std::mem::take(&mut self.now.dstat);
        self.come_forward(enabled);
        value
    }

    pub fn take_sist0(&mut self, enabled: Enabled) -> u8 {
        let value = std::mem::take(&mut self.now.sist0);
        self.come_forward(enabled);
        value
    }

    pub fn take_sist1(&mut self, enabled: Enabled) -> u8 {
        let value = std::mem::take(&mut self.now.sist1);
        self.come_forward(enabled);
        value
    }

    fn come_forward(&mut self, enabled: Enabled) {
        if !self.dip() && !self.sip(enabled) {
            let next = std::mem::take(&mut self.next);
            self.now.dstat |= next.dstat;
            self.now.sist0 |= next.sist0;
            self.now.sist1 |= next.sist1;
        }
    }
}
