//! The SCRIPTS processor: fetches instructions and carries them out, one at a time (manual, chapter 5).
//!
//! An instruction is latched before it runs, and what it has done so far is kept with it. So one that has to
//! wait, for the target, for memory or for the next run, is simply carried out again from there.

mod block_move;
mod memory_move;
mod register_ops;
mod scsi_io;
mod transfer;

use crate::chip::Chip;
use crate::ports::{Bus, Targets};
use crate::registers::{CCNTL1, DBC, DCMD, DCNTL, DNAD, DSP, DSPS, SFS, ccntl1, dcntl, dstat};

/// Why an instruction does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The target has nothing to ask yet, or no target comes.
    Bus,
    /// Memory was asked for.
    Memory,
    /// The run's limit is used up.
    Limit,
    /// An interrupt or a reset ended it.
    Stopped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Stopped,
    /// The next instruction is to be fetched.
    Fetch,
    /// The latched instruction is to be carried out, or carried on.
    Execute,
}

/// What a latched instruction has done so far.
#[derive(Clone, Copy, Default)]
pub enum Progress {
    #[default]
    None,
    Block(block_move::Block),
    Copy(memory_move::Copy),
}

#[derive(Default)]
pub struct Cpu {
    pub state: State,
    /// Where the latched instruction is.
    at: u32,
    words: [u32; 3],
    /// How many of them are latched.
    latched: usize,
    progress: Progress,
    carry: bool,
}

impl Cpu {
    pub fn stop(&mut self) {
        self.state = State::Stopped;
        self.progress = Progress::None;
        self.latched = 0;
    }
}

/// Bits 23 to 0, as a signed number.
fn signed24(word: u32) -> u32 {
    word << 8 >> 8
        | if word & 0x0080_0000 != 0 {
            0xff00_0000
        } else {
            0
        }
}

impl Chip {
    /// DSP was written, or STD set: what ran before is forgotten.
    pub(crate) fn start(&mut self) {
        self.stop();
        self.cpu.state = State::Fetch;
        self.awake = true;
    }

    /// The instruction under way is forgotten, and what it has asked for: memory may be another when it is carried out again.
    pub(crate) fn stop(&mut self) {
        self.cpu.stop();
        self.forget_read();
    }

    /// One step of the program.
    pub(crate) fn step<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        if self.cpu.state == State::Fetch {
            self.fetch(host)?;
            // An empty word was passed over.
            if self.cpu.state == State::Fetch {
                return Ok(());
            }
        }
        self.execute(host)?;
        // A write to DSP or ISTAT0 from within the instruction has decided what comes next.
        if self.cpu.state == State::Execute {
            self.cpu.state = State::Fetch;
            self.cpu.progress = Progress::None;
            self.cpu.latched = 0;
            if self.regs.has(DCNTL, dcntl::SSM) {
                self.interrupt_dma(dstat::SSI);
            }
        }
        Ok(())
    }

    fn fetch<H: Bus>(&mut self, host: &mut H) -> Result<(), Pause> {
        let at = self.regs.get32(DSP);
        let base = u64::from(self.regs.get32(SFS)) << 32;
        if self.cpu.latched == 0 {
            let [a, b, c, d, e, f, g, h] = self.load_instruction(host, base | u64::from(at))?;
            let first = u32::from_le_bytes([a, b, c, d]);
            if first == 0 {
                // An empty word is passed over. Firmware relies on it: a data phase of no bytes in its template.
                self.regs.set32(DSP, at.wrapping_add(4));
                return Ok(());
            }
            self.cpu.at = at;
            self.cpu.words = [first, u32::from_le_bytes([e, f, g, h]), 0];
            self.cpu.latched = 2;
        }
        let [first, second, _] = self.cpu.words;
        let mut next = at.wrapping_add(8);
        if self.has_third_word(first) {
            let mut bytes = [0; 4];
            self.load(host, base | u64::from(next), &mut bytes)?;
            self.cpu.words[2] = u32::from_le_bytes(bytes);
            next = next.wrapping_add(4);
        }
        self.regs.set32(DSP, next);
        self.regs.set24(DBC, first);
        self.regs.set(DCMD, first.to_be_bytes()[0]);
        self.regs.set32(DSPS, second);
        self.regs.set32(DNAD, second);
        self.cpu.state = State::Execute;
        Ok(())
    }

    /// Memory moves, and direct block moves to 64-bit addresses.
    fn has_third_word(&self, first: u32) -> bool {
        let direct_block_move = first >> 30 == 0 && first & 0x3000_0000 == 0;
        first >> 29 == 0b110 || direct_block_move && self.regs.has(CCNTL1, ccntl1::EN64DBMV)
    }

    fn execute<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let first = self.cpu.words[0];
        match first >> 27 {
            0b00_000..=0b00_111 => self.block_move(host),
            0b01_000..=0b01_100 => self.scsi_io(host),
            0b01_101..=0b01_111 => self.register_op(),
            0b10_000..=0b10_011 => self.transfer_control(host),
            0b11_000..=0b11_011 => self.memory_move(host),
            0b11_100..=0b11_111 => self.load_store(host),
            _ => Err(self.illegal()),
        }
    }

    /// The address that an instruction's second word names: absolute, or relative to the next instruction.
    fn target_address(&self, relative: bool) -> u32 {
        let second = self.cpu.words[1];
        if relative {
            self.regs.get32(DSP).wrapping_add(signed24(second))
        } else {
            second
        }
    }

    /// Illegal instruction detected.
    fn illegal(&mut self) -> Pause {
        self.interrupt_dma(dstat::IID);
        Pause::Stopped
    }
}

#[cfg(test)]
mod tests {
    use super::signed24;

    #[test]
    fn relative_addresses_go_both_ways() {
        assert_eq!(signed24(0x1200_0010), 0x10);
        assert_eq!(signed24(0x00ff_fff8), 0xffff_fff8);
        assert_eq!(signed24(0xff80_0000), 0xff80_0000);
    }
}
