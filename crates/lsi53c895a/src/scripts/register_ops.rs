//! Read and write instructions: arithmetic on the chip's own registers, SFBR, and immediate bytes.

use super::Pause;
use crate::chip::Chip;
use crate::registers::SFBR;

impl Chip {
    pub(super) fn register_op(&mut self) -> Result<(), Pause> {
        let first = self.cpu.words[0];
        let [op, register, immediate, low] = first.to_be_bytes();
        // The register's bit 7 has its own place; that of its byte says "use SFBR".
        let with_sfbr = register & 0x80 != 0;
        let register = register & 0x7f | low & 0x80;
        let operator = op & 0x07;
        let opcode = op >> 3 & 0x07;
        // 5: from SFBR to the register; 6: from the register to SFBR; 7: the register itself.
        let operand = match opcode {
            5 => self.regs.get(SFBR),
            _ if operator == 0 => 0,
            _ => self.read_register(register),
        };
        let other = if with_sfbr {
            self.regs.get(SFBR)
        } else {
            immediate
        };
        let result = match operator {
            0 if opcode == 5 && !with_sfbr => immediate,
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
        };
        if opcode == 6 {
            self.regs.set(SFBR, result);
        } else {
            self.write_register(register, result);
        }
        Ok(())
    }
}
