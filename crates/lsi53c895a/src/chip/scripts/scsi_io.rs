//! I/O instructions, as initiator: select, wait for disconnect or reselect, set and clear.

use super::{Pause, signed24};
use crate::chip::core::Chip;
use crate::chip::link::Link;
use crate::chip::ports::{Bus, Targets};
use crate::chip::registers::{
    DRS, DSA, DSP, ISTAT0, SCNTL0, SCNTL3, SDID, SXFER, istat0, scntl0, sist1,
};

const TABLE: u32 = 1 << 25;
const RELATIVE: u32 = 1 << 26;
const WITH_ATN: u32 = 1 << 24;

const SET_ATN: u32 = 1 << 3;
const SET_ACK: u32 = 1 << 6;
const SET_TARGET: u32 = 1 << 9;
const SET_CARRY: u32 = 1 << 10;

const SELECT: u32 = 0;
const WAIT_DISCONNECT: u32 = 1;
const WAIT_RESELECT: u32 = 2;
const SET: u32 = 3;

fn opcode(first: u32) -> u32 {
    first >> 27 & 0x07
}

impl Chip {
    #[inline(never)]
    pub(super) fn scsi_io<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let first = self.cpu.words[0];
        match opcode(first) {
            SELECT => self.select_instruction(host),
            WAIT_DISCONNECT => self.wait_disconnect(),
            WAIT_RESELECT => self.wait_reselect(),
            SET => {
                self.set(first);
                Ok(())
            }
            _ => {
                self.clear(first);
                Ok(())
            }
        }
    }

    /// The fast path for instructions that do not wait. False: the instruction is another, and nothing was done.
    #[inline]
    pub(super) fn scsi_io_fast(&mut self, first: u32) -> bool {
        match opcode(first) {
            SELECT | WAIT_RESELECT => return false,
            WAIT_DISCONNECT => return self.is_disconnected(),
            SET => self.set(first),
            _ => self.clear(first),
        }
        true
    }

    fn is_disconnected(&self) -> bool {
        matches!(self.link, Link::Free) && self.tasks.draining() == 0
    }

    /// The alternate address: what a selection does that finds the chip reselected, and a wait that is called off.
    fn alternate(&mut self) {
        let to = self.target_address(self.cpu.words[0] & RELATIVE != 0);
        self.regs.set32(DSP, to);
    }

    fn select_instruction<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let first = self.cpu.words[0];
        self.release_ack();
        let word = if first & TABLE != 0 {
            let entry = self.regs.get32(DSA).wrapping_add(signed24(first));
            self.load_word(
                host,
                u64::from(self.regs.get32(DRS)) << 32 | u64::from(entry),
            )?
        } else {
            first
        };
        let [scntl3, id, sxfer, _] = word.to_be_bytes();
        if first & TABLE != 0 {
            // Also where a target is connected already: programs set up the transfer so after a reselection.
            self.regs.set(SCNTL3, scntl3);
            self.regs.set(SXFER, sxfer);
        }
        if self.connected() {
            self.alternate();
            return Ok(());
        }
        if self.tasks.draining() > 0 {
            return Err(Pause::Bus);
        }
        let target = id & 0x0f;
        self.regs.set(SDID, target);
        self.select(host, target, first & WITH_ATN != 0);
        Ok(())
    }

    fn wait_disconnect(&mut self) -> Result<(), Pause> {
        self.release_ack();
        match self.link {
            Link::Selecting => {
                self.link = Link::Free;
                self.interrupt_scsi(0, sist1::STO);
                Err(Pause::Stopped)
            }
            Link::Connected(_) => Err(Pause::Bus),
            Link::Free if self.is_disconnected() => Ok(()),
            Link::Free => Err(Pause::Bus),
        }
    }

    fn wait_reselect(&mut self) -> Result<(), Pause> {
        self.release_ack();
        if matches!(self.link, Link::Selecting) {
            self.link = Link::Free;
            self.interrupt_scsi(0, sist1::STO);
            return Err(Pause::Stopped);
        }
        if self
            .connection()
            .is_some_and(|connection| connection.reselected)
            || self.reselect()
        {
            return Ok(());
        }
        if self.regs.has(ISTAT0, istat0::SIGP) {
            self.alternate();
            return Ok(());
        }
        Err(Pause::Bus)
    }

    fn set(&mut self, first: u32) {
        if first & SET_CARRY != 0 {
            self.cpu.carry = true;
        }
        if first & SET_TARGET != 0 {
            self.regs.set(SCNTL0, self.regs.get(SCNTL0) | scntl0::TRG);
        }
        if first & SET_ATN != 0 {
            self.set_atn();
        }
    }

    fn clear(&mut self, first: u32) {
        if first & SET_CARRY != 0 {
            self.cpu.carry = false;
        }
        if first & SET_TARGET != 0 {
            self.regs.set(SCNTL0, self.regs.get(SCNTL0) & !scntl0::TRG);
        }
        if first & SET_ATN != 0 {
            self.clear_atn();
        }
        if first & SET_ACK != 0 {
            self.release_ack();
        }
    }
}
