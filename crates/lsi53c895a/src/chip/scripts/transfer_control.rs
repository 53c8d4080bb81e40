//! Transfer control instructions: jump, call, return and interrupt, under conditions on phase, data and carry.

use super::sign_extend_24;
use crate::chip::Chip;
use crate::chip::host_traits::{PciBus, Targets};
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::{DSP, ISTAT0, SFBR, SSTAT1, TEMP, dstat, istat0};

const RELATIVE: u32 = 1 << 23;
const RESERVED: u32 = 1 << 22;
const COMPARE_CARRY: u32 = 1 << 21;
const ON_THE_FLY: u32 = 1 << 20;
const IF_TRUE: u32 = 1 << 19;
const COMPARE_DATA: u32 = 1 << 18;
const COMPARE_PHASE: u32 = 1 << 17;
const WAIT_FOR_PHASE: u32 = 1 << 16;
const COMPARE_AWAITED_PHASE: u32 = COMPARE_PHASE | WAIT_FOR_PHASE;

const CALL: u32 = 1;
const RETURN: u32 = 2;
const INTERRUPT: u32 = 3;

/// The instruction's operation: jump, call, return or interrupt.
fn opcode(first: u32) -> u32 {
    first >> 27 & 0x03
}

/// Whether an instruction has a reserved bit, or compares the carry together with something else.
fn has_illegal_bits(first: u32) -> bool {
    first & RESERVED != 0
        || first & COMPARE_CARRY != 0 && first & (COMPARE_DATA | COMPARE_PHASE) != 0
}

/// The phase with which an instruction compares.
fn compared_phase(first: u32) -> u8 {
    first.to_le_bytes()[3] & 0x07
}

impl Chip {
    /// Executes a jump, a call, a return or an interrupt if its condition holds.
    #[inline(never)]
    pub(super) fn execute_transfer_control<H: PciBus + Targets>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let [first, second, _] = self.cpu.words;
        if has_illegal_bits(first) {
            return Err(self.raise_illegal_instruction());
        }
        let phase = match first & COMPARE_AWAITED_PHASE {
            COMPARE_AWAITED_PHASE => self.wait_for_and_latch_phase(host, compared_phase(first))?,
            COMPARE_PHASE => self.bus_or_latched_phase(),
            _ => 0,
        };
        if !self.condition_holds(first, phase) {
            return Ok(());
        }
        if opcode(first) != INTERRUPT {
            let next = self.jump_destination_saving_temp(first, second, self.regs.get32(DSP));
            self.regs.set32(DSP, next);
        } else if first & ON_THE_FLY == 0 {
            self.raise_dma_interrupt(dstat::SIR);
        } else {
            let was_up = self.irq_level();
            self.regs.set(ISTAT0, self.regs.get(ISTAT0) | istat0::INTF);
            if !was_up && self.irq_level() {
                host.on_interrupt_asserted();
            }
        }
        Ok(())
    }

    /// The fast path; `next` is the address behind the instruction, and becomes the address at which the program
    /// continues. False: the instruction interrupts, waits, is illegal or has several comparisons, and nothing was
    /// done.
    #[inline]
    pub(super) fn try_fast_transfer_control(
        &mut self,
        first: u32,
        second: u32,
        next: &mut u32,
    ) -> bool {
        let holds = match first & (RESERVED | COMPARE_CARRY | COMPARE_DATA | COMPARE_AWAITED_PHASE)
        {
            0 => true,
            COMPARE_AWAITED_PHASE => match self.latch_phase_if_known() {
                Some(phase) => phase == compared_phase(first),
                None => return false,
            },
            COMPARE_PHASE => self.bus_or_latched_phase() == compared_phase(first),
            COMPARE_DATA => self.sfbr_matches(first),
            COMPARE_CARRY => self.cpu.carry,
            _ => return false,
        };
        if holds == (first & IF_TRUE != 0) {
            if opcode(first) == INTERRUPT {
                return false;
            }
            *next = self.jump_destination_saving_temp(first, second, *next);
        }
        true
    }

    /// The phase on the bus, or the one that was latched last; without waiting.
    fn bus_or_latched_phase(&self) -> u8 {
        self.bus_phase().unwrap_or(self.regs.get(SSTAT1) & 0x07)
    }

    /// Whether the condition holds. All comparisons must have the result in bit 19; without any, bit 19 itself decides.
    fn condition_holds(&self, first: u32, phase: u8) -> bool {
        let if_true = first & IF_TRUE != 0;
        if first & (COMPARE_CARRY | COMPARE_DATA | COMPARE_PHASE) == 0 {
            return if_true;
        }
        (first & COMPARE_CARRY == 0 || self.cpu.carry == if_true)
            && (first & COMPARE_PHASE == 0 || (phase == compared_phase(first)) == if_true)
            && (first & COMPARE_DATA == 0 || self.sfbr_matches(first) == if_true)
    }

    /// Whether SFBR equals the instruction's data, except bits of the mask.
    #[inline]
    fn sfbr_matches(&self, first: u32) -> bool {
        let [data, mask, ..] = first.to_le_bytes();
        (self.regs.get(SFBR) ^ data) & !mask == 0
    }

    /// The destination of a jump, a call (which also sets TEMP) or a return.
    #[inline]
    fn jump_destination_saving_temp(&mut self, first: u32, second: u32, next: u32) -> u32 {
        match opcode(first) {
            RETURN => return self.regs.get32(TEMP),
            CALL => self.regs.set32(TEMP, next),
            _ => {}
        }
        if first & RELATIVE != 0 {
            next.wrapping_add(sign_extend_24(second))
        } else {
            second
        }
    }
}
