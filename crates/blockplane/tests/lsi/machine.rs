//! Machine for tests: a guest whose PCI slot is served by the program over vfio-user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use lsi53c895a::chip::BarAddresses;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use test_support::deadline::Deadline;
use test_support::events::{event, is_readable_before, take};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{access, map, memory, set_irqs};
use vfio_user::wire::{self, RegionAccess, command};

use crate::assemble::Program;
pub use crate::offsets::*;

pub const BARS: BarAddresses = BarAddresses {
    io: 0xc000,
    registers: 0xfe00_0000,
    ram: 0xfe01_0000,
};

pub const MEMORY: usize = 4 << 20;

const CONFIG: u32 = 7;

pub struct Machine {
    connection: Connection,
    host: *mut u8,
    memory: OwnedFd,
    trigger: OwnedFd,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: mapped by `plug`, and not shared.
        unsafe { munmap(self.host.cast(), MEMORY) }.unwrap();
    }
}

impl Machine {
    /// Plugs the device in, as a monitor and its firmware do.
    pub fn plug(path: &Path) -> Self {
        let memory = memory(MEMORY as u64);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping.
        let host = unsafe { mmap(nowhere, MEMORY, protection, MapFlags::SHARED, &memory, 0) };
        let machine = Machine {
            connection: Connection::connect(path),
            host: host.unwrap().cast(),
            trigger: event(),
            memory,
        };
        machine.call(command::VERSION, &[0; 4], &[]);
        let all = map(0, MEMORY as u64);
        machine.call(command::DMA_MAP, &all, &[machine.memory.as_fd()]);
        let trigger = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
        machine.set_irqs(trigger, &[machine.trigger.as_fd()]);
        machine.call(command::DEVICE_RESET, &[], &[]);
        for (offset, base) in [
            (0x10, BARS.io),
            (0x14, BARS.registers),
            (0x18, BARS.ram),
            (4, 7),
        ] {
            machine.write(CONFIG, offset, &base.to_le_bytes());
        }
        machine
    }

    /// The next interrupt finds an eventfd that is full and not non-blocking any more.
    pub fn make_interrupts_block(&self) {
        rustix::io::write(&self.trigger, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&self.trigger, rustix::fs::OFlags::empty()).unwrap();
    }

    fn set_irqs(&self, flags: u32, fds: &[BorrowedFd<'_>]) {
        let payload = set_irqs(wire::IRQ_INTX, flags, 1, &[]);
        self.call(command::DEVICE_SET_IRQS, &payload, fds);
    }

    pub fn call(&self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.connection.call(command, payload, fds)
    }

    fn read(&self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let payload = access(region, offset, count, &[]);
        self.call(command::REGION_READ, &payload, &[])
            .split_off(RegionAccess::BYTES)
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) {
        let payload = access(region, offset, data.len() as u32, data);
        self.call(command::REGION_WRITE, &payload, &[]);
    }

    /// What is behind its memory.
    pub fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    /// Says this, whatever it is, and listens to no answer. False: the program does not take it, now or any more.
    pub fn say(&self, bytes: &[u8]) -> bool {
        self.connection.send_bytes(bytes)
    }

    /// Whether the program makes room for more, within the time that it usually takes.
    pub fn may_say_more(&self) -> bool {
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 200_000_000,
        };
        let fds = &mut [PollFd::from_borrowed_fd(
            self.connection.socket(),
            PollFlags::OUT,
        )];
        poll(fds, Some(&soon)) == Ok(1)
    }

    /// Waits for the line to tell something, and lets it tell more.
    #[track_caller]
    pub fn interrupted(&self, deadline: Deadline) {
        if !is_readable_before(deadline, &self.trigger) {
            let bytes = [ISTAT0, ISTAT1, DSTAT, SIST0, SIST1].map(|register| self.read8(register));
            let words = [DSP, DSPS].map(|register| self.read32(register));
            panic!(
                "no interrupt: ISTAT0, ISTAT1, DSTAT, SIST0, SIST1 {bytes:x?}; DSP, DSPS {words:x?}"
            );
        }
        take(&self.trigger);
    }

    /// After an interrupt was dealt with.
    pub fn unmask(&self) {
        self.set_irqs(wire::IRQ_DATA_NONE | wire::IRQ_ACTION_UNMASK, &[]);
    }

    /// Whether the program has hung up.
    pub fn is_hung_up(&self) -> bool {
        self.connection.is_hung_up()
    }

    pub fn irq_level(&self) -> bool {
        self.read(CONFIG, 6, 1)[0] & 8 != 0
    }

    pub fn read8(&self, register: u8) -> u8 {
        self.read(0, register.into(), 1)[0]
    }

    pub fn read32(&self, register: u8) -> u32 {
        u32::from_le_bytes(self.read(1, register.into(), 4).try_into().unwrap())
    }

    pub fn write8(&mut self, register: u8, value: u8) {
        self.write(0, register.into(), &[value]);
    }

    pub fn write32(&mut self, register: u8, value: u32) {
        self.write(1, register.into(), &value.to_le_bytes());
    }

    /// Writes guest memory, or SCRIPTS RAM if the address is there.
    pub fn poke(&mut self, addr: u32, bytes: &[u8]) {
        if let Some(offset) = addr.checked_sub(BARS.ram) {
            return self.write(2, offset.into(), bytes);
        }
        assert!(addr as usize + bytes.len() <= MEMORY);
        // SAFETY: inside of the mapping, and there is no reference to it.
        unsafe {
            let to = self.host.add(addr as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    pub fn poke32(&mut self, addr: u32, value: u32) {
        self.poke(addr, &value.to_le_bytes());
    }

    /// Reads guest memory.
    pub fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(addr as usize + len <= MEMORY);
        // SAFETY: inside of the mapping, and there is no reference to it.
        unsafe {
            let from = self.host.add(addr as usize);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    pub fn peek32(&self, addr: u32) -> u32 {
        u32::from_le_bytes(self.peek(addr, 4).try_into().unwrap())
    }

    pub fn start(&mut self, program: &Program, base: u32) {
        self.poke(base, &program.bytes());
        self.write32(DSP, base);
    }

    /// The program does that by itself.
    pub fn go(&mut self) {}
}
