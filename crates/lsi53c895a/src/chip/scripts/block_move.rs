//! Block moves: bytes between memory and the SCSI bus, in the phase that the instruction names.
//!
//! If the target asks for another phase, before the first byte or in the middle, that is a phase mismatch: an
//! interrupt, or a jump to a handler of the program's with all that it needs to go on later in the registers RBC, UA, ESA and IA.

use super::{Pause, Progress, State, signed24};
use crate::chip::core::Chip;
use crate::chip::link::phase;
use crate::chip::ports::{Bus, Targets};
use crate::chip::registers::*;

/// A block move under way.
#[derive(Clone, Copy)]
pub struct Block {
    phase: u8,
    addr: u64,
    left: u32,
    moved: u32,
    /// What RBC has above the count: the instruction's first byte, or the table entry's.
    high: u8,
    /// Where the count and the address came from.
    entry: u32,
}

/// Most of one move of messages at a time.
const MESSAGE_CHUNK: usize = 32;

impl Chip {
    #[inline(never)]
    pub(super) fn block_move<H: Bus + Targets>(&mut self, host: &mut H) -> Result<(), Pause> {
        let mut block = match self.cpu.progress {
            Progress::Block(block) => block,
            _ => self.resolve(host)?,
        };
        if block.left == 0 && block.moved == 0 {
            return Err(self.illegal());
        }
        let moved = self.carry_on(host, &mut block);
        if moved.is_err() && self.cpu.state == State::Execute {
            self.cpu.progress = Progress::Block(block);
        }
        moved
    }

    /// To its end, or as far as it goes now.
    fn carry_on<H: Bus + Targets>(&mut self, host: &mut H, block: &mut Block) -> Result<(), Pause> {
        while block.left > 0 {
            let asked = self.requested(host, block.phase)?;
            if asked != block.phase {
                return self.mismatch(block);
            }
            let taken = self.move_piece(host, block)?;
            block.addr = block.addr.wrapping_add(taken as u64);
            let taken = u32::try_from(taken).expect("no more than was left");
            block.left -= taken;
            block.moved += taken;
            self.regs.set24(DBC, block.left);
            self.regs.set32(DNAD, low32(block.addr));
            if block.phase == phase::MESSAGE_OUT && block.left == 0 {
                self.message_out_ends();
            }
            // What was stored may have been a register of the program's own.
            if self.cpu.state != State::Execute {
                return Err(Pause::Stopped);
            }
            if block.phase == phase::MESSAGE_IN && self.has_sent_last_message() {
                break;
            }
            if block.left > 0 {
                self.charge()?;
            }
        }
        self.count(block);
        Ok(())
    }

    /// Address and count: in the instruction, behind a pointer, or in a table at DSA.
    fn resolve<H: Bus>(&mut self, host: &mut H) -> Result<Block, Pause> {
        let [first, second, third] = self.cpu.words;
        let mut block = Block {
            phase: first.to_be_bytes()[0] & 0x07,
            addr: 0,
            left: first & 0x00ff_ffff,
            moved: 0,
            high: first.to_be_bytes()[0],
            entry: self.cpu.at,
        };
        let static_high = u64::from(self.regs.get32(SBMS)) << 32;
        if first & 0x1000_0000 != 0 {
            // Table indirect, whatever bit 29 says.
            block.entry = self.regs.get32(DSA).wrapping_add(signed24(second));
            let table = u64::from(self.regs.get32(DRS)) << 32 | u64::from(block.entry);
            let [count, low] = self.load_words(host, table)?;
            let high = count.to_be_bytes()[0];
            block.left = count & 0x00ff_ffff;
            block.high = high;
            let upper = if !self.regs.has(CCNTL1, ccntl1::EN64TIBMV) {
                static_high
            } else if self.regs.has(CCNTL1, ccntl1::TIMOD64) {
                u64::from(high) << 32
            } else {
                self.selector(high).ok_or(()).map_err(|()| self.illegal())?
            };
            block.addr = upper | u64::from(low);
        } else if first & 0x2000_0000 != 0 {
            let low = self.load_word(host, static_high | u64::from(second))?;
            block.addr = static_high | u64::from(low);
        } else if self.regs.has(CCNTL1, ccntl1::EN64DBMV) {
            self.regs.set32(DBMS, third);
            block.addr = u64::from(third) << 32 | u64::from(second);
        } else {
            block.addr = static_high | u64::from(second);
        }
        self.regs.set24(DBC, block.left);
        self.regs.set32(DNAD, low32(block.addr));
        Ok(block)
    }

    /// The upper half of an address, from the register that a table entry names by a number.
    fn selector(&self, high: u8) -> Option<u64> {
        let at = match high & 0x1f {
            // SCRATCHC to SCRATCHR.
            index @ 0x00..=0x0f => SCRATCHC + 4 * index,
            0x10 => MMRS,
            0x11 => MMWS,
            0x12 => SFS,
            0x13 => DRS,
            0x14 => SBMS,
            0x15 => DBMS,
            _ => return None,
        };
        Some(u64::from(self.regs.get32(at)) << 32)
    }

    /// As much as goes at once, in a phase that both ends agree about. The number of bytes.
    fn move_piece<H: Bus + Targets>(
        &mut self,
        host: &mut H,
        block: &Block,
    ) -> Result<usize, Pause> {
        let left = usize::try_from(block.left).expect("24 bits");
        match block.phase {
            phase::DATA_IN | phase::DATA_OUT => self.collect(host, block.addr, left),
            phase::COMMAND => {
                let mut bytes = [0; 16];
                let room = self.command_room();
                let bytes = &mut bytes[..left.min(room)];
                self.load(host, block.addr, bytes)?;
                self.take_command(host, bytes);
                // What is longer than any command is passed over: firmware sends 32 bytes.
                Ok(left)
            }
            phase::MESSAGE_OUT => {
                let mut bytes = [0; MESSAGE_CHUNK];
                let bytes = &mut bytes[..left.min(MESSAGE_CHUNK)];
                self.load(host, block.addr, bytes)?;
                for byte in &*bytes {
                    self.receive_message_byte(host, *byte);
                }
                Ok(bytes.len())
            }
            phase::MESSAGE_IN => {
                let Some(connection) = self.connection() else {
                    return Ok(0);
                };
                let mut bytes = [0; MESSAGE_CHUNK];
                let said = connection.says.left(left.min(MESSAGE_CHUNK));
                let bytes = &mut bytes[..said.len()];
                bytes.copy_from_slice(said);
                self.store(host, block.addr, bytes)?;
                self.received(block, bytes);
                if let Some(connection) = self.connection_mut() {
                    connection.says.took(bytes.len());
                    connection.ack_held = true;
                }
                Ok(bytes.len())
            }
            phase::STATUS => {
                let Some(connection) = self.connection() else {
                    return Ok(0);
                };
                let status = [connection.status];
                self.store(host, block.addr, &status)?;
                self.received(block, &status);
                self.status_taken(host);
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    /// SFBR shows the first byte of a move, SIDL the last.
    fn received(&mut self, block: &Block, bytes: &[u8]) {
        if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
            if block.moved == 0 {
                self.regs.set(SFBR, *first);
            }
            self.regs.set(SIDL, *last);
        }
    }

    /// The chip lowers ATN with the last byte, and the target goes on, unless it lacks the rest of a message.
    fn message_out_ends(&mut self) {
        let Some(connection) = self.connection_mut() else {
            return;
        };
        connection.atn = false;
        if !connection.listens.in_message() {
            self.settle();
        }
    }

    /// The counters that SCRIPTS and drivers may look at afterwards.
    fn count(&mut self, block: &Block) {
        self.regs.set24(SBC, block.moved);
        if phase::is_data(block.phase) {
            self.regs
                .set32(CSBC, self.regs.get32(CSBC).wrapping_add(block.moved));
        }
    }

    fn mismatch(&mut self, block: &Block) -> Result<(), Pause> {
        self.count(block);
        // In 40-bit mode the table's upper byte is a part of the address, which may have moved on.
        let wide = self.regs.has(CCNTL1, ccntl1::EN64TIBMV | ccntl1::TIMOD64)
            && block.entry != self.cpu.at;
        let high = if wide {
            block.addr.to_le_bytes()[4]
        } else {
            block.high
        };
        self.regs.set32(RBC, u32::from(high) << 24 | block.left);
        self.regs.set32(UA, low32(block.addr));
        self.regs.set32(ESA, block.entry);
        self.regs.set32(IA, self.cpu.at);
        let jumps = self.regs.has(CCNTL0, ccntl0::ENPMJ)
            && (phase::is_data(block.phase) || self.regs.has(CCNTL0, ccntl0::ENNDJ));
        if !jumps {
            self.interrupt_scsi(sist0::MA, 0);
            return Err(Pause::Stopped);
        }
        // By direction, or by whether half a word is left over, which never happens here.
        let second = self.regs.has(CCNTL0, ccntl0::PMJCTL) && phase::is_in(block.phase);
        self.regs
            .set32(DSP, self.regs.get32(if second { PMJAD2 } else { PMJAD1 }));
        Ok(())
    }
}

fn low32(addr: u64) -> u32 {
    let [a, b, c, d, ..] = addr.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
