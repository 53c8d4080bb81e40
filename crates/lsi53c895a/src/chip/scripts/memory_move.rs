//! Memory moves: bytes between memory and memory.

use super::{Pause, Progress};
use crate::chip::core::Chip;
use crate::chip::memory::CHUNK;
use crate::chip::ports::Bus;
use crate::chip::registers::{DMODE, DSPS, MMRS, MMWS, TEMP, dmode};

/// A memory move under way.
#[derive(Clone, Copy)]
pub struct Copy {
    from: u32,
    to: u32,
    left: usize,
}

impl Chip {
    #[inline(never)]
    pub(super) fn memory_move<H: Bus>(&mut self, host: &mut H) -> Result<(), Pause> {
        let [first, from, to] = self.cpu.words;
        // Bits 28 to 25 are reserved, and both addresses sit alike in their words.
        if first & 0x1e00_0000 != 0 || (from ^ to) & 0x03 != 0 {
            return Err(self.illegal());
        }
        let mut copy = match self.cpu.progress {
            Progress::Copy(copy) => copy,
            _ => {
                self.regs.set32(TEMP, to);
                Copy {
                    from,
                    to,
                    left: usize::try_from(first & 0x00ff_ffff).expect("24 bits"),
                }
            }
        };
        self.cpu.progress = Progress::Copy(copy);
        let mut bytes = [0; CHUNK];
        while copy.left > 0 {
            let len = copy.left.min(piece(copy.from)).min(piece(copy.to));
            let bytes = &mut bytes[..len];
            self.load_space(host, copy.from, bytes)?;
            self.store_space(host, copy.to, bytes)?;
            // What was written may have been DSP, or a reset.
            if !matches!(self.cpu.progress, Progress::Copy(_)) {
                return Err(Pause::Stopped);
            }
            let step = u32::try_from(len).expect("a page at most");
            copy.from = copy.from.wrapping_add(step);
            copy.to = copy.to.wrapping_add(step);
            copy.left -= len;
            self.cpu.progress = Progress::Copy(copy);
            if copy.left > 0 {
                self.charge()?;
                if self.waits_for_memory() {
                    return Err(Pause::Memory);
                }
            }
        }
        self.regs.set32(DSPS, copy.from);
        self.regs.set32(TEMP, copy.to);
        Ok(())
    }

    fn load_space<H: Bus>(
        &mut self,
        host: &mut H,
        from: u32,
        bytes: &mut [u8],
    ) -> Result<(), Pause> {
        if !self.regs.has(DMODE, dmode::SIOM) {
            return self.load(
                host,
                u64::from(self.regs.get32(MMRS)) << 32 | u64::from(from),
                bytes,
            );
        }
        for (at, byte) in (u64::from(from)..).zip(bytes) {
            match self.io_register(at) {
                Some(register) => *byte = self.read_register(register),
                None => return Err(self.bus_fault()),
            }
        }
        Ok(())
    }

    fn store_space<H: Bus>(&mut self, host: &mut H, to: u32, bytes: &[u8]) -> Result<(), Pause> {
        if !self.regs.has(DMODE, dmode::DIOM) {
            return self.store(
                host,
                u64::from(self.regs.get32(MMWS)) << 32 | u64::from(to),
                bytes,
            );
        }
        for (at, byte) in (u64::from(to)..).zip(bytes) {
            match self.io_register(at) {
                Some(register) => self.write_register(register, *byte),
                None => return Err(self.bus_fault()),
            }
        }
        Ok(())
    }
}

/// Up to the next border of a window or a mapping.
fn piece(addr: u32) -> usize {
    // 1 KiB: the smallest window in memory.
    0x400 - usize::try_from(addr & 0x3ff).expect("small")
}
