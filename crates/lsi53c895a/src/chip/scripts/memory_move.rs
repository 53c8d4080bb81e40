//! Memory move instructions: copy bytes from memory to memory, or from or to the chip's registers in I/O space.

use super::MoveInProgress;
use crate::chip::Chip;
use crate::chip::host_traits::PciBus;
use crate::chip::memory_access::MAX_ACCESS_BYTES;
use crate::chip::pause_reason::PauseReason;
use crate::chip::registers::{DMODE, DSPS, MMRS, MMWS, TEMP, dmode};

/// A memory move under way.
#[derive(Clone, Copy)]
pub struct MemoryMove {
    from: u32,
    to: u32,
    left: usize,
}

impl Chip {
    /// Executes a memory move, or continues one that had to wait.
    #[inline(never)]
    pub(super) fn execute_memory_move<H: PciBus>(
        &mut self,
        host: &mut H,
    ) -> Result<(), PauseReason> {
        let [first, from, to] = self.cpu.words;
        // Bits 28 to 25 are reserved, and both addresses sit alike in their words.
        if first & 0x1e00_0000 != 0 || (from ^ to) & 0x03 != 0 {
            return Err(self.raise_illegal_instruction());
        }
        let mut copy = match self.cpu.progress {
            MoveInProgress::Copy(copy) => copy,
            _ => {
                self.regs.set32(TEMP, to);
                MemoryMove {
                    from,
                    to,
                    left: usize::try_from(first & 0x00ff_ffff).expect("24 bits"),
                }
            }
        };
        self.cpu.progress = MoveInProgress::Copy(copy);
        let mut bytes = [0; MAX_ACCESS_BYTES];
        while copy.left > 0 {
            let len = copy
                .left
                .min(bytes_to_window_border(copy.from))
                .min(bytes_to_window_border(copy.to));
            let bytes = &mut bytes[..len];
            self.load_memory_or_io(host, copy.from, bytes)?;
            self.store_memory_or_io(host, copy.to, bytes)?;
            // What was written may have been DSP, or a reset.
            if !matches!(self.cpu.progress, MoveInProgress::Copy(_)) {
                return Err(PauseReason::Stopped);
            }
            let step = u32::try_from(len).expect("a page at most");
            copy.from = copy.from.wrapping_add(step);
            copy.to = copy.to.wrapping_add(step);
            copy.left -= len;
            self.cpu.progress = MoveInProgress::Copy(copy);
            if copy.left > 0 {
                self.charge_one_instruction()?;
                if self.waits_for_memory() {
                    return Err(PauseReason::Memory);
                }
            }
        }
        self.regs.set32(DSPS, copy.from);
        self.regs.set32(TEMP, copy.to);
        Ok(())
    }

    /// Reads from memory, or from the chip's registers in I/O space if DMODE says so.
    fn load_memory_or_io<H: PciBus>(
        &mut self,
        host: &mut H,
        from: u32,
        bytes: &mut [u8],
    ) -> Result<(), PauseReason> {
        if !self.regs.has_bits(DMODE, dmode::SIOM) {
            return self.load_bytes(
                host,
                u64::from(self.regs.get32(MMRS)) << 32 | u64::from(from),
                bytes,
            );
        }
        for (at, byte) in (u64::from(from)..).zip(bytes) {
            match self.register_at_io_address(at) {
                Some(register) => *byte = self.read_register(register),
                None => return Err(self.raise_bus_fault()),
            }
        }
        Ok(())
    }

    /// Writes to memory, or to the chip's registers in I/O space if DMODE says so.
    fn store_memory_or_io<H: PciBus>(
        &mut self,
        host: &mut H,
        to: u32,
        bytes: &[u8],
    ) -> Result<(), PauseReason> {
        if !self.regs.has_bits(DMODE, dmode::DIOM) {
            return self.store_bytes(
                host,
                u64::from(self.regs.get32(MMWS)) << 32 | u64::from(to),
                bytes,
            );
        }
        for (at, byte) in (u64::from(to)..).zip(bytes) {
            match self.register_at_io_address(at) {
                Some(register) => self.write_register(register, *byte),
                None => return Err(self.raise_bus_fault()),
            }
        }
        Ok(())
    }
}

/// How many bytes there are from an address to the next border of a window or a mapping.
fn bytes_to_window_border(addr: u32) -> usize {
    // 1 KiB: the smallest window in memory.
    0x400 - usize::try_from(addr & 0x3ff).expect("small")
}
