//! Machine for tests: the adapter behind a vfio-user socket, with guest memory and disks in memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::{DiscardLimits, DiskCall, DiskIo, Geometry, Op, Request};
use engine::Errno;
use lsi53c895a::adapter::{Adapter, Disk};
use lsi53c895a::chip::BarAddresses;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use scsi::{Unit, UnitOptions};
use vfio_user::wire::{self, command};

use crate::assemble::Program;
pub use crate::offsets::*;
use test_support::events::{event, take};
use test_support::vfio_user::memory;
use test_support::vfio_user::rig::Rig;

pub const BARS: BarAddresses = BarAddresses {
    io: 0xc000,
    registers: 0xfe00_0000,
    ram: 0xfe01_0000,
};

pub const MEMORY: usize = 4 << 20;
pub const DISK: usize = 4 << 20;
pub const BLOCK: usize = 512;

const IO: u32 = 0;
const REGISTERS: u32 = 1;
const SCRIPTS_RAM: u32 = 2;
pub const CONFIG: u32 = 7;

/// What the disks have not yet done, and their bytes.
#[derive(Default)]
pub struct Disks {
    pub bytes: Vec<Vec<u8>>,
    pub waiting: Vec<(usize, u32, Request)>,
    /// Requests that a disk takes at a time.
    pub room: usize,
    /// All are answered so.
    pub error: Option<Errno>,
}

impl DiskIo for Disks {
    fn room(&self, disk: u32) -> usize {
        let taken = self
            .waiting
            .iter()
            .filter(|(other, ..)| *other == disk as usize);
        self.room - taken.count()
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        let slot = u32::try_from(request.token).unwrap();
        self.waiting.push((disk as usize, slot, request));
    }

    fn submit_blocking_call(&mut self, _: u32, _: DiskCall, _: u32) {
        unreachable!("no blocking work is submitted");
    }
}

impl Disks {
    /// Executes a request on the bytes of a disk.
    fn execute_request(&mut self, disk: usize, request: &Request) {
        let mut at = usize::try_from(request.offset).unwrap();
        let len = usize::try_from(request.len).unwrap();
        let bytes = &mut self.bytes[disk];
        match request.op {
            Op::Flush | Op::Discard => return,
            Op::WriteZeroes { .. } => return bytes[at..at + len].fill(0),
            Op::Read | Op::Write => {}
        }
        // SAFETY: the adapter keeps list and memory until the request is completed.
        let segments =
            unsafe { std::slice::from_raw_parts(request.iov, request.iov_count as usize) };
        for segment in segments {
            let disk = bytes[at..at + segment.iov_len].as_mut_ptr();
            let guest = segment.iov_base.cast::<u8>();
            let (from, to) = match request.op {
                Op::Read => (disk, guest),
                _ => (guest, disk),
            };
            // SAFETY: as above; both are as long as the segment says.
            unsafe { std::ptr::copy_nonoverlapping(from, to, segment.iov_len) };
            at += segment.iov_len;
        }
    }
}

pub struct Machine {
    pub rig: Rig<Adapter>,
    pub disks: Disks,
    /// They do nothing by themselves.
    pub holds: bool,
    fd: OwnedFd,
    host: *mut u8,
    pub trigger: OwnedFd,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not shared.
        unsafe { munmap(self.host.cast(), MEMORY) }.unwrap();
    }
}

impl Machine {
    /// A disk each on these targets and units.
    pub fn with(places: &[(u8, u8)]) -> Self {
        let geometry = Geometry {
            size: DISK as u64,
            logical_block_size: 512,
            physical_block_size: 512,
            min_io_size: 0,
            opt_io_size: 0,
            discard: DiscardLimits {
                max_bytes: u64::MAX,
                granularity: 512,
            },
        };
        let disks: Vec<Disk> = places
            .iter()
            .map(|(target, lun)| Disk {
                target: *target,
                lun: *lun,
                unit: Arc::new(Unit::new(UnitOptions::default(), geometry).unwrap()),
            })
            .collect();
        let fd = memory(MEMORY as u64);
        // SAFETY: a new mapping.
        let host = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(
                std::ptr::null_mut(),
                MEMORY,
                access,
                MapFlags::SHARED,
                &fd,
                0,
            )
        };
        let mut machine = Machine {
            rig: Rig::around(Adapter::new("disks", &disks).unwrap()),
            disks: Disks {
                bytes: vec![vec![0; DISK]; places.len()],
                room: usize::MAX,
                ..Disks::default()
            },
            holds: false,
            fd,
            host: host.unwrap().cast(),
            trigger: event(),
        };
        machine.plug();
        machine
    }

    /// What a monitor and its firmware do.
    pub fn plug(&mut self) {
        let rig = &mut self.rig;
        rig.agree();
        rig.map(0, MEMORY as u64, Some(&self.fd)).unwrap();
        rig.set_irqs(
            wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER,
            1,
            Some(&self.trigger),
        )
        .unwrap();
        rig.call(command::DEVICE_RESET, &[], &[]).unwrap();
        for (offset, base) in [
            (0x10, BARS.io),
            (0x14, BARS.registers),
            (0x18, BARS.ram),
            (4, 7),
        ] {
            rig.write(CONFIG, offset, &base.to_le_bytes()).unwrap();
        }
    }

    /// One disk, which has heard the first command's complaint that it was switched on.
    pub fn new() -> Self {
        Machine::with(&[(0, 0)])
    }

    pub fn irq_level(&mut self) -> bool {
        let mut status = self.rig.read(CONFIG, 6, 1).unwrap();
        status.remove(0) & 8 != 0
    }

    pub fn interrupts(&mut self) -> u64 {
        let seen = take(&self.trigger);
        self.rig
            .set_irqs(wire::IRQ_DATA_NONE | wire::IRQ_ACTION_UNMASK, 1, None)
            .unwrap();
        seen
    }

    pub fn read8(&mut self, register: u8) -> u8 {
        self.rig.read(IO, register.into(), 1).unwrap()[0]
    }

    pub fn read32(&mut self, register: u8) -> u32 {
        let bytes = self.rig.read(REGISTERS, register.into(), 4).unwrap();
        u32::from_le_bytes(bytes.try_into().unwrap())
    }

    pub fn write8(&mut self, register: u8, value: u8) {
        self.rig.write(IO, register.into(), &[value]).unwrap();
    }

    pub fn write32(&mut self, register: u8, value: u32) {
        let bytes = value.to_le_bytes();
        self.rig.write(REGISTERS, register.into(), &bytes).unwrap();
    }

    /// Writes guest memory, or SCRIPTS RAM if the address is there.
    pub fn poke(&mut self, addr: u32, bytes: &[u8]) {
        if let Some(offset) = addr.checked_sub(BARS.ram) {
            let mut at = u64::from(offset);
            for piece in bytes.chunks(1024) {
                self.rig.write(SCRIPTS_RAM, at, piece).unwrap();
                at += piece.len() as u64;
            }
            return;
        }
        let at = addr as usize;
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: within the mapping, to which no reference exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.add(at), bytes.len()) };
    }

    pub fn poke32(&mut self, addr: u32, value: u32) {
        self.poke(addr, &value.to_le_bytes());
    }

    pub fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(addr as usize + len <= MEMORY);
        // SAFETY: within the mapping, to which no reference exists.
        unsafe {
            std::ptr::copy_nonoverlapping(self.host.add(addr as usize), bytes.as_mut_ptr(), len);
        }
        bytes
    }

    pub fn peek32(&self, addr: u32) -> u32 {
        u32::from_le_bytes(self.peek(addr, 4).try_into().unwrap())
    }

    pub fn start(&mut self, program: &Program, base: u32) {
        self.poke(base, &program.bytes());
        self.write32(DSP, base);
        self.go();
    }

    /// Until nothing moves any more.
    pub fn go(&mut self) {
        for _ in 0..10_000 {
            self.rig.turn();
            let (adapter, _) = self.rig.server.device_and_host();
            adapter.submit_queued_requests(&mut self.disks);
            if !self.holds && !self.disks.waiting.is_empty() {
                while !self.disks.waiting.is_empty() {
                    self.complete(0);
                }
                continue;
            }
            match self.rig.server.device_and_host().0.deadline_ns() {
                // Pauses of the adapter; longer deadlines are not waited for.
                Some(deadline_ns) if deadline_ns < self.rig.now_ns + 1_000_000 => {
                    self.rig.now_ns = self.rig.now_ns.max(deadline_ns);
                    self.rig
                        .server
                        .device_and_host()
                        .0
                        .advance_time(self.rig.now_ns);
                }
                _ => return,
            }
        }
        panic!("it never comes to rest");
    }

    /// A disk does what it was asked, and the adapter hears of it.
    pub fn complete(&mut self, index: usize) {
        let (disk, slot, request) = self.disks.waiting.remove(index);
        let result = match self.disks.error {
            Some(error) => Err(error),
            None => {
                self.disks.execute_request(disk, &request);
                Ok(())
            }
        };
        self.rig
            .server
            .device_and_host()
            .0
            .complete_request(slot, result);
    }

    /// As above, and what comes of it.
    pub fn finish(&mut self, index: usize) {
        self.complete(index);
        self.go();
    }
}
