//! Machine for tests: the adapter behind a vfio-user socket, with guest memory and disks in memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::{DiscardLimits, DiskCall, DiskIo, Geometry, Request};
use engine::Errno;
use lsi53c895a::adapter::{Adapter, Disk};
use scsi::{Unit, UnitOptions};
use vfio_user::wire::{self, command};

pub use lsi_driver::offsets::*;
pub use lsi_driver::program::RAM;
pub use lsi_driver::slot::{CONFIG, Slot};
use test_support::disk::carry_out;
use test_support::events::{event, take};
use test_support::vfio_user::rig::Rig;
use virtqueue::testing::TestMemory;

pub type Driver = lsi_driver::driver::Driver<Machine>;

pub const MEMORY: usize = 4 << 20;
pub const DISK: usize = 4 << 20;

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
        let taken = self.waiting.iter().filter(|waits| waits.0 == disk as usize);
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

pub struct Machine {
    pub rig: Rig<Adapter>,
    pub disks: Disks,
    /// They do nothing by themselves.
    pub holds: bool,
    memory: TestMemory,
    pub trigger: OwnedFd,
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
        let disk = |&(target, lun): &(u8, u8)| Disk {
            target,
            lun,
            unit: Arc::new(Unit::new(UnitOptions::default(), geometry).unwrap()),
        };
        let disks: Vec<Disk> = places.iter().map(disk).collect();
        let mut machine = Machine {
            rig: Rig::around(Adapter::new("disks", &disks).unwrap()),
            disks: Disks {
                bytes: vec![vec![0; DISK]; places.len()],
                room: usize::MAX,
                ..Disks::default()
            },
            holds: false,
            memory: TestMemory::with_regions(&[(0, MEMORY as u64)]),
            trigger: event(),
        };
        machine.plug();
        machine
    }

    /// What a monitor and its firmware do.
    pub fn plug(&mut self) {
        let rig = &mut self.rig;
        rig.agree();
        let fd = self.memory.region_file(0).try_clone_to_owned().unwrap();
        rig.map(0, MEMORY as u64, Some(&fd)).unwrap();
        let trigger = wire::IRQ_DATA_EVENTFD | wire::IRQ_ACTION_TRIGGER;
        rig.set_irqs(trigger, 1, Some(&self.trigger)).unwrap();
        rig.call(command::DEVICE_RESET, &[], &[]).unwrap();
        self.set_up_windows();
    }

    /// One disk, which has heard the first command's complaint that it was switched on.
    pub fn new() -> Self {
        Machine::with(&[(0, 0)])
    }

    pub fn adapter(&mut self) -> &mut Adapter {
        self.rig.server.device_and_host().0
    }

    /// The adapter hands requests to the disks.
    pub fn submit(&mut self) {
        let (adapter, _) = self.rig.server.device_and_host();
        adapter.submit_queued_requests(&mut self.disks);
    }

    /// Time passes.
    pub fn advance(&mut self, ns: u64) {
        self.rig.now_ns += ns;
        let now_ns = self.rig.now_ns;
        self.adapter().advance_time(now_ns);
    }

    pub fn interrupts(&mut self) -> u64 {
        let seen = take(&self.trigger);
        self.rig
            .set_irqs(wire::IRQ_DATA_NONE | wire::IRQ_ACTION_UNMASK, 1, None)
            .unwrap();
        seen
    }

    /// A disk does what it was asked, and the adapter hears of it.
    pub fn complete(&mut self, index: usize) {
        let (disk, slot, request) = self.disks.waiting.remove(index);
        let result = match self.disks.error {
            Some(error) => Err(error),
            None => {
                // SAFETY: the adapter keeps list and memory until the request is completed.
                unsafe { carry_out(&mut self.disks.bytes[disk], &request) };
                Ok(())
            }
        };
        self.adapter().complete_request(slot, result);
    }

    /// As above, and what comes of it.
    pub fn finish(&mut self, index: usize) {
        self.complete(index);
        self.go();
    }
}

impl Slot for Machine {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        self.rig.read(region, offset, count).unwrap()
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.rig.write(region, offset, data).unwrap();
    }

    fn write_memory(&mut self, addr: u32, bytes: &[u8]) {
        self.memory.write(addr.into(), bytes);
    }

    fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        self.memory.read(addr.into(), len)
    }

    fn go(&mut self) {
        for _ in 0..10_000 {
            self.rig.turn();
            self.submit();
            if !self.holds && !self.disks.waiting.is_empty() {
                while !self.disks.waiting.is_empty() {
                    self.complete(0);
                }
                continue;
            }
            match self.adapter().deadline_ns() {
                // Pauses of the adapter; longer deadlines are not waited for.
                Some(deadline_ns) if deadline_ns < self.rig.now_ns + 1_000_000 => {
                    self.advance(deadline_ns.saturating_sub(self.rig.now_ns));
                }
                _ => return,
            }
        }
        panic!("it never comes to rest");
    }
}
