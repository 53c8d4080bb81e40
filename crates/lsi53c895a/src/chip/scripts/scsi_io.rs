//! I/O instructions, as initiator: select, wait for disconnect or reselect, set and clear.

use super::sign_extend_24;
use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, Targets};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::{
    DRS, DSA, DSP, ISTAT0, SCNTL0, SCNTL3, SDID, SXFER, istat0, scntl0, sist1,
};
use crate::chip::scsi_bus::BusState;

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

/// The instruction's operation: select, wait, set or clear.
fn opcode(first: u32) -> u32 {
    first >> 27 & 0x07
}

impl Chip {
    /// Executes an I/O instruction, or continues one that had to wait.
    #[inline(never)]
    pub(super) fn execute_scsi_io<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let first = self.cpu.words[0];
        match opcode(first) {
            SELECT => self.execute_select(host),
            WAIT_DISCONNECT => self.execute_wait_disconnect(),
            WAIT_RESELECT => self.execute_wait_reselect(),
            SET => {
                self.execute_set(first);
                Ok(())
            }
            _ => {
                self.execute_clear(first);
                Ok(())
            }
        }
    }

    /// The fast path for instructions that do not wait. False: the instruction is another, and nothing was done.
    #[inline]
    pub(super) fn try_fast_scsi_io(&mut self, first: u32) -> bool {
        match opcode(first) {
            SELECT | WAIT_RESELECT => return false,
            WAIT_DISCONNECT => return self.is_bus_free_and_drained(),
            SET => self.execute_set(first),
            _ => self.execute_clear(first),
        }
        true
    }

    /// Whether no target is on the bus, and no aborted task keeps it busy.
    fn is_bus_free_and_drained(&self) -> bool {
        matches!(self.bus_state, BusState::Free) && self.tasks.draining_task_count() == 0
    }

    /// Jumps to the instruction's alternate address: a selection finds the chip reselected, or a wait is called off.
    fn jump_to_alternate(&mut self) {
        let to = self.address_operand(self.cpu.words[0] & RELATIVE != 0);
        self.regs.set32(DSP, to);
    }

    /// Selects the target that the instruction, or an entry of a table at DSA, names.
    fn execute_select<H: PciBus + Targets>(&mut self, host: &mut H) -> Result<(), PauseReason> {
        let first = self.cpu.words[0];
        self.release_ack();
        let word = if first & TABLE != 0 {
            let entry = self.regs.get32(DSA).wrapping_add(sign_extend_24(first));
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
        if self.is_connected() {
            self.jump_to_alternate();
            return Ok(());
        }
        if self.tasks.draining_task_count() > 0 {
            return Err(PauseReason::Bus);
        }
        let target = id & 0x0f;
        self.regs.set(SDID, target);
        self.select_target(host, target, first & WITH_ATN != 0);
        Ok(())
    }

    /// Waits until the target has left the bus.
    fn execute_wait_disconnect(&mut self) -> Result<(), PauseReason> {
        self.release_ack();
        match self.bus_state {
            BusState::Selecting => {
                self.bus_state = BusState::Free;
                self.raise_scsi_interrupt(0, sist1::STO);
                Err(PauseReason::Stopped)
            }
            BusState::Connected(_) => Err(PauseReason::Bus),
            BusState::Free if self.is_bus_free_and_drained() => Ok(()),
            BusState::Free => Err(PauseReason::Bus),
        }
    }

    /// Waits until a target reselects the chip, or SIGP calls the wait off.
    fn execute_wait_reselect(&mut self) -> Result<(), PauseReason> {
        self.release_ack();
        if matches!(self.bus_state, BusState::Selecting) {
            self.bus_state = BusState::Free;
            self.raise_scsi_interrupt(0, sist1::STO);
            return Err(PauseReason::Stopped);
        }
        if self
            .connection()
            .is_some_and(|connection| connection.reselected)
            || self.try_reselect()
        {
            return Ok(());
        }
        if self.regs.has_bits(ISTAT0, istat0::SIGP) {
            self.jump_to_alternate();
            return Ok(());
        }
        Err(PauseReason::Bus)
    }

    /// Sets the carry, target mode or ATN, as the instruction says. ACK can only be cleared.
    fn execute_set(&mut self, first: u32) {
        if first & SET_CARRY != 0 {
            self.cpu.carry = true;
        }
        if first & SET_TARGET != 0 {
            self.regs.set(SCNTL0, self.regs.get(SCNTL0) | scntl0::TRG);
        }
        if first & SET_ATN != 0 {
            self.raise_atn_and_try_message_out();
        }
    }

    /// Clears the carry, target mode, ATN or ACK, as the instruction says.
    fn execute_clear(&mut self, first: u32) {
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
