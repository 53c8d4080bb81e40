//! The adapter's PCI slot and the guest's memory, as a driver on the CPU accesses them.

#![allow(missing_docs, reason = "accesses are named by their width")]

use crate::assemble::Program;
use crate::offsets::DSP;
use crate::program::RAM;

/// Where firmware has put the windows: ports, registers, SCRIPTS RAM.
pub const WINDOWS: [u32; 3] = [0xc000, 0xfe00_0000, RAM];

// Regions of the device, as VFIO numbers them.
const IO: u32 = 0;
const REGISTERS: u32 = 1;
const SCRIPTS_RAM: u32 = 2;
pub const CONFIG: u32 = 7;

/// A machine with the adapter.
pub trait Slot {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8>;
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);
    fn write_memory(&mut self, addr: u32, bytes: &[u8]);
    /// Reads guest memory.
    fn peek(&self, addr: u32, len: usize) -> Vec<u8>;
    /// Lets adapter and disks work, if they do not by themselves, until nothing moves any more.
    fn go(&mut self);

    /// What firmware does: places the windows, and enables memory, ports and bus mastering.
    fn set_up_windows(&mut self) {
        for (offset, base) in (0x10..).step_by(4).zip(WINDOWS) {
            self.write(CONFIG, offset, &base.to_le_bytes());
        }
        self.write(CONFIG, 4, &7u32.to_le_bytes());
    }

    fn irq_level(&mut self) -> bool {
        self.read(CONFIG, 6, 1)[0] & 8 != 0
    }

    fn read8(&mut self, register: u8) -> u8 {
        self.read(IO, register.into(), 1)[0]
    }

    fn read32(&mut self, register: u8) -> u32 {
        word(self.read(REGISTERS, register.into(), 4))
    }

    fn write8(&mut self, register: u8, value: u8) {
        self.write(IO, register.into(), &[value]);
    }

    fn write32(&mut self, register: u8, value: u32) {
        self.write(REGISTERS, register.into(), &value.to_le_bytes());
    }

    /// Writes guest memory, or SCRIPTS RAM if the address is there.
    fn poke(&mut self, addr: u32, bytes: &[u8]) {
        let Some(offset) = addr.checked_sub(RAM) else {
            return self.write_memory(addr, bytes);
        };
        for (at, piece) in (offset.into()..).step_by(1024).zip(bytes.chunks(1024)) {
            self.write(SCRIPTS_RAM, at, piece);
        }
    }

    fn poke32(&mut self, addr: u32, value: u32) {
        self.poke(addr, &value.to_le_bytes());
    }

    fn peek32(&self, addr: u32) -> u32 {
        word(self.peek(addr, 4))
    }

    /// Puts a program into memory or SCRIPTS RAM, and starts it.
    fn start(&mut self, program: &Program, base: u32) {
        self.poke(base, &program.bytes());
        self.write32(DSP, base);
        self.go();
    }
}

fn word(bytes: Vec<u8>) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}
