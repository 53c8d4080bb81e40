//! Register read/write instructions: arithmetic on the chip's own registers, SFBR, and immediate bytes.

use crate::chip::Chip;
use crate::chip::register_effects;
use crate::chip::registers::{CTEST2, SCNTL2, SFBR};

// 5: from SFBR to the register; 6: from the register to SFBR; 7: the register itself.
const FROM_SFBR: u8 = 5;
const TO_SFBR: u8 = 6;

/// The operator that does nothing with what it is given.
const MOVE: u8 = 0;

/// A decoded read or write instruction.
struct RegisterOp {
    opcode: u8,
    operator: u8,
    register: u8,
    immediate: u8,
    /// SFBR instead of the immediate byte.
    with_sfbr: bool,
}

impl RegisterOp {
    /// Decodes the instruction's first word.
    #[inline]
    fn decode(first: u32) -> Self {
        let [low, immediate, register, op] = first.to_le_bytes();
        RegisterOp {
            opcode: op >> 3 & 0x07,
            operator: op & 0x07,
            // Its bit 7 has its own place; that of its byte says "use SFBR".
            register: register & 0x7f | low & 0x80,
            immediate,
            with_sfbr: register & 0x80 != 0,
        }
    }

    /// Whether the operation reads the register, which may have side effects.
    fn reads_register(&self) -> bool {
        self.opcode != FROM_SFBR && self.operator != MOVE
    }

    /// Whether the result is written to the register, and not to SFBR.
    fn writes_register(&self) -> bool {
        self.opcode != TO_SFBR
    }
}

impl Chip {
    /// Executes a read or write instruction.
    pub(super) fn execute_register_op(&mut self) {
        self.execute_with_effects(&RegisterOp::decode(self.cpu.words[0]));
    }

    /// Executes an operation on any register, with its side effects.
    #[inline(never)]
    fn execute_with_effects(&mut self, operation: &RegisterOp) {
        let operand = match operation.reads_register() {
            true => self.read_register(operation.register),
            false => self.regs.get(SFBR),
        };
        let result = self.compute_result_and_carry(operation, operand);
        match operation.writes_register() {
            true => self.write_register(operation.register, result),
            false => self.regs.set(SFBR, result),
        }
    }

    /// The fast path for plain registers, and for two that programs use in every command and whose side effects are
    /// harmless. False: the register is another, and nothing was done.
    #[inline]
    pub(super) fn try_fast_register_op(&mut self, first: u32) -> bool {
        let operation = RegisterOp::decode(first);
        let (reads, writes) = (operation.reads_register(), operation.writes_register());
        let register = operation.register;
        if reads && !register_effects::reads_without_effect(register)
            || writes && !register_effects::writes_without_effect(register)
        {
            let is_harmless = matches!((register, writes), (CTEST2, false) | (SCNTL2, true));
            if is_harmless {
                self.execute_with_effects(&operation);
            }
            return is_harmless;
        }
        let operand = self.regs.get(if reads { register } else { SFBR });
        let result = self.compute_result_and_carry(&operation, operand);
        self.regs.set(if writes { register } else { SFBR }, result);
        true
    }

    /// Applies the operator to the operand and to the immediate byte or SFBR; updates the carry.
    #[inline]
    fn compute_result_and_carry(&mut self, operation: &RegisterOp, operand: u8) -> u8 {
        let RegisterOp {
            operator,
            immediate,
            with_sfbr,
            ..
        } = *operation;
        let other = if with_sfbr {
            self.regs.get(SFBR)
        } else {
            immediate
        };
        match operator {
            0 => other,
            1 => {
                let result = operand << 1 | u8::from(self.cpu.carry);
                self.cpu.carry = operand & 0x80 != 0;
                result
            }
            2 => operand | other,
            3 => operand ^ other,
            4 => operand & other,
            5 => {
                let result = operand >> 1 | u8::from(self.cpu.carry) << 7;
                self.cpu.carry = operand & 0x01 != 0;
                result
            }
            _ => {
                let carry_in = u16::from(operator == 7 && self.cpu.carry);
                let [result, carry] =
                    (u16::from(operand) + u16::from(other) + carry_in).to_le_bytes();
                self.cpu.carry = carry != 0;
                result
            }
        }
    }
}
