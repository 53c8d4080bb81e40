//! The fast path for short instructions in the chip's own memory: jumps, arithmetic on registers, loads and stores of
//! words, acknowledgements. Drivers' programs consist mostly of these, so they are executed here in one loop. The
//! registers that show the last instruction are written once, at the end.
//!
//! All other instructions are left to [`Chip::step_program`], before they have any effect.

use crate::chip::host_traits::PciBus;
use crate::chip::registers::{DCNTL, DSP, SFS, dcntl};
use crate::chip::{Chip, EVENT_CHECK_INTERVAL};

impl Chip {
    /// Runs as long as instructions are short. True: the limit is reached, and other events must be checked first.
    #[inline(never)]
    pub(crate) fn run_fast_path<H: PciBus>(&mut self, host: &mut H) -> bool {
        let base = self.bars.ram;
        if base == 0 || self.regs.get32(SFS) != 0 || self.regs.has_bits(DCNTL, dcntl::SSM) {
            return false;
        }
        let mut at = self.regs.get32(DSP);
        let mut left = self.instructions_left;
        let mut last = [0; 2];
        while let Some([first, second]) = self.ram_word_pair_at_offset(at.wrapping_sub(base)) {
            let mut next = at.wrapping_add(8);
            let is_done = match first >> 27 {
                0b10_000..=0b10_011 => self.try_fast_transfer_control(first, second, &mut next),
                0b11_100..=0b11_111 => self.try_fast_load_store(host, first, second),
                0b01_101..=0b01_111 => self.try_fast_register_op(first),
                0b01_000..=0b01_100 => self.try_fast_scsi_io(first),
                _ => false,
            };
            if !is_done {
                break;
            }
            at = next;
            last = [first, second];
            left -= 1;
            if left.is_multiple_of(EVENT_CHECK_INTERVAL) {
                break;
            }
        }
        if left == self.instructions_left {
            return false;
        }
        self.update_instruction_registers(last, at);
        self.instructions_left = left;
        left.is_multiple_of(EVENT_CHECK_INTERVAL)
    }
}
