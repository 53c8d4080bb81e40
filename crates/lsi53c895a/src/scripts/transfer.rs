//! Transfer control: jump, call, return and interrupt, under conditions on phase, data and carry.

use super::Pause;
use crate::chip::Chip;
use crate::ports::{Bus, Targets};
use crate::registers::{DSP, ISTAT0, SFBR, SSTAT1, TEMP, dstat, istat0};

const RELATIVE: u32 = 1 << 23;
const RESERVED: u32 = 1 << 22;
const CARRY: u32 = 1 << 21;
const ON_THE_FLY: u32 = 1 << 20;
const IF_TRUE: u32 = 1 << 19;
const DATA: u32 = 1 << 18;
const PHASE: u32 = 1 << 17;
const WAIT: u32 = 1 << 16;

impl Chip {
    pub(super) fn transfer_control<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let first = self.cpu.words[0];
        if first & RESERVED != 0 || first & CARRY != 0 && first & (DATA | PHASE) != 0 {
            return Err(self.illegal());
        }
        if !self.condition(host)? {
            return Ok(());
        }
        match first >> 27 & 0x07 {
            0 => self.jump(),
            1 => {
                self.regs.set32(TEMP, self.regs.get32(DSP));
                self.jump();
            }
            2 => self.regs.set32(DSP, self.regs.get32(TEMP)),
            _ if first & ON_THE_FLY != 0 => {
                let was_up = self.irq_level();
                self.regs.set(ISTAT0, self.regs.get(ISTAT0) | istat0::INTF);
                if !was_up && self.irq_level() {
                    host.interrupt();
                }
            }
            _ => self.interrupt_dma(dstat::SIR),
        }
        Ok(())
    }

    fn jump(&mut self) {
        let to = self.target_address(self.cpu.words[0] & RELATIVE != 0);
        self.regs.set32(DSP, to);
    }

    /// With several comparisons all have to come out as bit 19 says; with none, bit 19 itself decides.
    fn condition<H: Bus + Targets>(&mut self, host: &mut H) -> Result<bool, Pause> {
        let first = self.cpu.words[0];
        let if_true = first & IF_TRUE != 0;
        if first & (CARRY | DATA | PHASE) == 0 {
            return Ok(if_true);
        }
        let mut holds = true;
        if first & CARRY != 0 {
            holds &= self.cpu.carry == if_true;
        }
        if first & PHASE != 0 {
            let wanted = first.to_be_bytes()[0] & 0x07;
            let now = if first & WAIT != 0 {
                self.requested(host, wanted)?
            } else {
                self.phase().unwrap_or(self.regs.get(SSTAT1) & 0x07)
            };
            holds &= (now == wanted) == if_true;
        }
        if first & DATA != 0 {
            let [.., mask, data] = first.to_be_bytes();
            holds &= ((self.regs.get(SFBR) ^ data) & !mask == 0) == if_true;
        }
        Ok(holds)
    }
}
