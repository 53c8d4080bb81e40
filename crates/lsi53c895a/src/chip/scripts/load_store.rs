//! Load and store instructions: move one to four bytes, within a word, between memory and the chip's registers.

use super::sign_extend_24;
use crate::chip::Chip;
use crate::chip::host_traits::PciBus;
use crate::chip::pause_reason::PauseReason;
use crate::chip::register_effects;
use crate::chip::registers::{CTEST2, DRS, DSA, MMRS, MMWS, SCRATCHA, SCRATCHB, ctest2};

const DSA_RELATIVE: u32 = 1 << 28;
const LOAD: u32 = 1 << 24;
/// How many bytes.
const COUNT: u32 = 0x07;

/// The register that the instruction names.
fn register_operand(first: u32) -> u8 {
    first.to_le_bytes()[2]
}

impl Chip {
    /// Executes a load or a store.
    #[inline(never)]
    pub(super) fn execute_load_store<H: PciBus>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let [first, second, _] = self.cpu.words;
        let register = register_operand(first);
        let count = (first & COUNT) as usize;
        let addr = self.memory_address(first, second);
        let aligned = addr.to_le_bytes()[0] & 0x03 == register & 0x03;
        if !(1..=4).contains(&count) || usize::from(register & 0x03) + count > 4 || !aligned {
            return Err(self.raise_illegal_instruction());
        }
        let mut bytes = [0; 4];
        let bytes = &mut bytes[..count];
        if first & LOAD != 0 {
            self.load_bytes(host, addr, bytes)?;
            for (at, byte) in (register..=u8::MAX).zip(bytes) {
                self.write_register(at, *byte);
            }
            return Ok(());
        }
        for (at, byte) in (register..=u8::MAX).zip(bytes.iter_mut()) {
            *byte = self.read_register(at);
        }
        self.store_bytes(host, addr, bytes)
    }

    /// The fast path for a whole word of guest memory and plain registers. False: the instruction is another, and
    /// nothing was done.
    #[inline]
    pub(super) fn try_fast_load_store<H: PciBus>(
        &mut self,
        host: &mut H,
        first: u32,
        second: u32,
    ) -> bool {
        let register = register_operand(first);
        let addr = self.memory_address(first, second);
        if first & COUNT != 4 || !addr.is_multiple_of(4) || self.is_own_window(addr) {
            return false;
        }
        if first & LOAD == 0 {
            return self.word_reads_without_effect(register)
                && host.write_word_if_mapped(addr, self.regs.get32(register));
        }
        if !register_effects::word_writes_without_effect(register) {
            return false;
        }
        match host.read_word_if_mapped(addr) {
            Some(word) => self.regs.set32(register, word),
            None => return false,
        }
        true
    }

    /// The address in memory: absolute, or relative to DSA.
    #[inline]
    fn memory_address(&self, first: u32, second: u32) -> u64 {
        let (upper, lower) = if first & DSA_RELATIVE != 0 {
            (
                DRS,
                self.regs.get32(DSA).wrapping_add(sign_extend_24(second)),
            )
        } else if first & LOAD != 0 {
            (MMRS, second)
        } else {
            (MMWS, second)
        };
        u64::from(self.regs.get32(upper)) << 32 | u64::from(lower)
    }

    /// Whether reading this word has no side effect. SCRATCHA and SCRATCHB show something else only while programs ask
    /// where the chip is.
    #[inline]
    fn word_reads_without_effect(&self, register: u8) -> bool {
        register_effects::word_reads_without_effect(register)
            || matches!(register, SCRATCHA | SCRATCHB)
                && !self.regs.has_bits(CTEST2, ctest2::PCICIE)
    }
}
