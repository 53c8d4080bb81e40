//! Machine for tests: a guest whose PCI slot is served by the program over vfio-user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::deadline::Deadline;
use test_support::events::{event, is_readable_before, take};
use test_support::vfio_user::connection::Connection;
use test_support::vfio_user::{access, map, set_irqs};
use vfio_user::wire::{self, RegionAccess, command};

use virtqueue::testing::TestMemory;

pub use lsi_driver::offsets::*;
pub use lsi_driver::slot::Slot;

pub type Driver = lsi_driver::driver::Driver<Machine>;

pub const MEMORY: usize = 4 << 20;

pub struct Machine {
    connection: Connection,
    memory: TestMemory,
    trigger: OwnedFd,
}

impl Machine {
    /// Plugs the device in, as a monitor and its firmware do.
    pub fn plug(path: &Path) -> Self {
        let mut machine = Machine {
            connection: Connection::connect(path),
            memory: TestMemory::with_regions(&[(0, MEMORY as u64)]),
            trigger: event(),
        };
        machine.call(command::VERSION, &[0; 4], &[]);
        let all = map(0, MEMORY as u64);
        machine.call(command::DMA_MAP, &all, &[machine.memory()]);
        let trigger = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
        machine.set_irqs(trigger, &[machine.trigger.as_fd()]);
        machine.call(command::DEVICE_RESET, &[], &[]);
        machine.set_up_windows();
        machine
    }

    /// The next interrupt finds an eventfd that is full and not non-blocking any more.
    pub fn make_interrupts_block(&self) {
        rustix::io::write(&self.trigger, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&self.trigger, rustix::fs::OFlags::empty()).unwrap();
    }

    pub fn set_irqs(&self, flags: u32, fds: &[BorrowedFd<'_>]) {
        let payload = set_irqs(wire::IRQ_INTX, flags, 1, &[]);
        self.call(command::DEVICE_SET_IRQS, &payload, fds);
    }

    pub fn call(&self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.connection.call(command, payload, fds)
    }

    /// What is behind its memory.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.region_file(0)
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
    pub fn interrupted(&mut self, deadline: Deadline) {
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
}

impl Slot for Machine {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let payload = access(region, offset, count, &[]);
        self.call(command::REGION_READ, &payload, &[])
            .split_off(RegionAccess::BYTES)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let payload = access(region, offset, data.len() as u32, data);
        self.call(command::REGION_WRITE, &payload, &[]);
    }

    fn write_memory(&mut self, addr: u32, bytes: &[u8]) {
        self.memory.write(addr.into(), bytes);
    }

    fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        self.memory.read(addr.into(), len)
    }

    /// The program does that by itself.
    fn go(&mut self) {}
}
