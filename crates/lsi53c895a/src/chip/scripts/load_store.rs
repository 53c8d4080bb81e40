//! Load and store: one to four bytes between memory and the chip's registers, that do not cross a word.

use super::{Pause, signed24};
use crate::chip::core::Chip;
use crate::chip::plain_registers;
use crate::chip::ports::Bus;
use crate::chip::registers::{CTEST2, DRS, DSA, MMRS, MMWS, SCRATCHA, SCRATCHB, ctest2};

const DSA_RELATIVE: u32 = 1 << 28;
const LOAD: u32 = 1 << 24;
/// How many bytes.
const COUNT: u32 = 0x07;

fn register_of(first: u32) -> u8 {
    first.to_le_bytes()[2]
}

impl Chip {
    #[inline(never)]
    pub(super) fn load_store<H: Bus>(&mut self, host: &mut H) -> Result<(), Pause> {
        let [first, second, _] = self.cpu.words;
        let register = register_of(first);
        let count = (first & COUNT) as usize;
        let addr = self.address_of(first, second);
        let aligned = addr.to_le_bytes()[0] & 0x03 == register & 0x03;
        if !(1..=4).contains(&count) || usize::from(register & 0x03) + count > 4 || !aligned {
            return Err(self.illegal());
        }
        let mut bytes = [0; 4];
        let bytes = &mut bytes[..count];
        if first & LOAD != 0 {
            self.load(host, addr, bytes)?;
            for (at, byte) in (register..=u8::MAX).zip(bytes) {
                self.write_register(at, *byte);
            }
            return Ok(());
        }
        for (at, byte) in (register..=u8::MAX).zip(bytes.iter_mut()) {
            *byte = self.read_register(at);
        }
        self.store(host, addr, bytes)
    }

    /// The fast path for a whole word of guest memory and plain registers. False: the instruction is another, and nothing was done.
    #[inline]
    pub(super) fn load_store_fast<H: Bus>(
        &mut self,
        host: &mut H,
        first: u32,
        second: u32,
    ) -> bool {
        let register = register_of(first);
        let addr = self.address_of(first, second);
        if first & COUNT != 4 || !addr.is_multiple_of(4) || self.is_own(addr) {
            return false;
        }
        if first & LOAD == 0 {
            return self.is_word_read(register) && host.write_word(addr, self.regs.get32(register));
        }
        if !plain_registers::is_word_written(register) {
            return false;
        }
        match host.read_word(addr) {
            Some(word) => self.regs.set32(register, word),
            None => return false,
        }
        true
    }

    #[inline]
    fn address_of(&self, first: u32, second: u32) -> u64 {
        let (upper, lower) = if first & DSA_RELATIVE != 0 {
            (DRS, self.regs.get32(DSA).wrapping_add(signed24(second)))
        } else if first & LOAD != 0 {
            (MMRS, second)
        } else {
            (MMWS, second)
        };
        u64::from(self.regs.get32(upper)) << 32 | u64::from(lower)
    }

    /// Some words show something else only while programs ask where the chip is.
    #[inline]
    fn is_word_read(&self, register: u8) -> bool {
        plain_registers::is_word_read(register)
            || matches!(register, SCRATCHA | SCRATCHB) && !self.regs.has(CTEST2, ctest2::PCICIE)
    }
}
