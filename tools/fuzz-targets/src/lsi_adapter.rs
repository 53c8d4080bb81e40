//! The chip in its slot, behind a socket, with SCSI disks: what a guest and its monitor do, and disks in any order.
//!
//! Requests to disks are for blocks that are there, and have the memory that they say, which stays until they are done, whatever
//! the monitor takes back; every command of the monitor's has its reply once the disks are done; and after a reset
//! the next command works.

use std::sync::Arc;

use lsi_driver::offsets::{DSP, DSPS, SCID};
use lsi_driver::slot::{CONFIG, Slot};
use lsi53c895a::adapter::{Adapter, Disk};
use scsi::Unit;
use test_support::lsi_chip::{FAR, FAR_BYTES};
use vfio_user::PciDevice;
use vfio_user::wire::command;
use virtqueue::testing::TestMemory;

use crate::disk::{DISK, Disks, geometry, keeping};
use crate::front_end::FrontEnd;
use crate::input::Input;
use crate::scripts::{self, ANSWER, COMMAND, DATA, MEMORY, MESSAGE, PROGRAMS, one_command, piece};

const REGISTERS: u32 = 1;

/// Target and unit of each disk.
const PLACES: [(u8, u8); 3] = [(0, 0), (0, 1), (3, 0)];

const EVENTS: usize = 300;

struct Machine {
    front_end: FrontEnd<Adapter>,
    disks: Disks,
    units: Vec<Arc<Unit>>,
    memory: TestMemory,
    far: Vec<u8>,
    /// Where the next piece of program goes.
    at: u32,
}

thread_local! {
    /// Zero again for each input.
    static GUEST_MEMORY: TestMemory = TestMemory::with_regions(&[(0, MEMORY as u64)]);
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut machine = Machine::new();
    input.events(EVENTS, |input| {
        machine.event(input);
        let adapter = machine.front_end.rig.server.device_and_host().0;
        assert_eq!(adapter.in_flight_count(), machine.disks.waiting.len());
    });
    machine.recovers();
}

impl Machine {
    fn new() -> Self {
        let unit = |_| Arc::new(Unit::new(keeping(), geometry()).expect("a disk"));
        let units: Vec<_> = PLACES.iter().map(unit).collect();
        let disk = |((target, lun), unit): (_, &Arc<Unit>)| Disk {
            target,
            lun,
            unit: unit.clone(),
        };
        let disks: Vec<_> = PLACES.into_iter().zip(&units).map(disk).collect();
        let memory = GUEST_MEMORY.with(TestMemory::clone);
        memory.fill(0, MEMORY, 0);
        let mut machine = Machine {
            front_end: FrontEnd::new(Adapter::new("fuzz", &disks).expect("disks")),
            disks: Disks::new(PLACES.len(), 64),
            units,
            memory,
            far: vec![0; FAR_BYTES],
            at: 0,
        };
        machine.plug();
        machine
    }

    /// What a monitor and its firmware do.
    fn plug(&mut self) {
        self.front_end.connect();
        self.front_end.agree();
        self.share();
        self.map_far();
        self.set_up();
    }

    fn share(&mut self) {
        let memory = self.memory.region_file(0);
        self.front_end.map(0, MEMORY as u64, Some(memory));
    }

    fn map_far(&mut self) {
        self.front_end.map(FAR.into(), FAR_BYTES as u64, None);
    }

    fn set_up(&mut self) {
        self.set_up_windows();
        self.write8(SCID, 0x47);
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 26 {
            0 => {
                let (register, byte) = (input.byte(), input.byte());
                self.write8(register, byte);
            }
            1 => {
                let (register, word) = (input.byte() & 0xfc, input.u32());
                self.write32(register, word);
            }
            2 => _ = self.read(REGISTERS, input.u16().into(), 4),
            3 => {
                let (offset, bytes) = (input.byte(), input.array::<4>());
                let len = [1, 2, 4, 3][input.below(4)];
                self.write(CONFIG, offset.into(), &bytes[..len]);
            }
            4 => {
                let at = usize::from(input.u16());
                let bytes = input.bytes(8);
                let len = bytes.len().min(MEMORY - at);
                self.memory.write(at as u64, &bytes[..len]);
            }
            5..=9 => {
                let words = piece(input);
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.poke(self.at, &bytes);
                self.at += u32::try_from(bytes.len()).expect("a few");
            }
            10 | 11 => {
                let (message, cdb) = scripts::command(input);
                self.poke(MESSAGE, &message);
                self.poke(COMMAND, &cdb);
            }
            12 => self.at = self.base(input),
            13..=15 => {
                let from = self.base(input);
                self.write32(DSP, from);
                self.turn();
            }
            16 | 17 => self.turn(),
            18 | 19 => {
                let (which, fails) = (input.byte(), input.byte() & 7 == 7);
                self.complete(which.into(), fails);
            }
            20 | 21 => {
                let succeeds = input.byte() & 7 != 7;
                self.front_end.answer(FAR.into(), &mut self.far, succeeds);
            }
            22 => self.pass_time(u64::from(input.u32())),
            23 => self.disks.room = input.below(70),
            24 => {
                let unit = &self.units[input.below(PLACES.len())];
                match input.below(4) {
                    0 => unit.set_read_only(input.flag()),
                    _ => _ = unit.resize((input.below(65) << 10) as u64),
                }
            }
            _ => match input.below(6) {
                0 => self.front_end.command(command::DEVICE_RESET, &[], None),
                1 => self.front_end.unmap(0, MEMORY as u64),
                2 => self.share(),
                3 => self.front_end.unmap(FAR.into(), FAR_BYTES as u64),
                4 => self.map_far(),
                _ => self.plug(),
            },
        }
    }

    /// Where a program may stand.
    fn base(&self, input: &mut Input) -> u32 {
        let offset = u32::from(input.byte()) * 4;
        PROGRAMS[input.below(2)] + offset
    }

    fn pass_time(&mut self, ns: u64) {
        self.front_end.rig.now_ns += ns;
        let now_ns = self.front_end.rig.now_ns;
        self.front_end
            .rig
            .server
            .device_and_host()
            .0
            .advance_time(now_ns);
    }

    /// What an iothread does.
    fn turn(&mut self) {
        for _ in 0..2 {
            let more = self.front_end.do_pending_work();
            let adapter = self.front_end.rig.server.device_and_host().0;
            adapter.submit_queued_requests(&mut self.disks);
            self.front_end.receive();
            if !more {
                break;
            }
        }
    }

    /// A disk has done what it was asked, or not.
    fn complete(&mut self, which: usize, fails: bool) {
        if let Some(done) = self.disks.complete(which, fails) {
            let slot = u32::try_from(done.token).expect("a number of the adapter's");
            let adapter = self.front_end.rig.server.device_and_host().0;
            adapter.complete_request(slot, done.result);
        }
    }

    /// Whatever the guest did, a reset makes a working adapter of it.
    fn recovers(&mut self) {
        self.disks.room = 64;
        for unit in &self.units {
            unit.resize(DISK as u64);
        }
        if !self.front_end.rig.is_connected() {
            self.plug();
        }
        self.front_end.command(command::DEVICE_RESET, &[], None);
        for _ in 0..2000 {
            self.turn();
            while !self.disks.waiting.is_empty() {
                self.complete(0, false);
            }
            while self.front_end.asked() {
                self.front_end.answer(FAR.into(), &mut self.far, true);
            }
            self.pass_time(200_000);
            if self.front_end.waiting() == 0 {
                break;
            }
        }
        assert!(self.front_end.rig.is_connected());
        assert_eq!(self.front_end.waiting(), 0, "all commands have their reply");
        let adapter = self.front_end.rig.server.device_and_host().0;
        assert!(adapter.is_reset_done() && adapter.in_flight_count() == 0);

        self.front_end.unmap(0, MEMORY as u64);
        self.turn();
        self.share();
        self.set_up();
        // INQUIRY.
        self.poke(0x100, &one_command(0, 6, 36));
        self.poke(MESSAGE, &[0x80]);
        self.poke(COMMAND, &[0x12, 0, 0, 0, 36, 0]);
        self.poke(ANSWER, &[0xee, 0xee]);
        self.poke(DATA, &[0xee; 36]);
        self.write32(DSP, 0x100);
        self.turn();
        assert_eq!(self.peek(ANSWER, 2), [0, 0], "GOOD, COMMAND COMPLETE");
        assert_eq!(self.peek(DATA, 2), [0, 0], "a disk");
        assert_eq!(self.read32(DSPS), 0x1234);
    }
}

/// Accesses to the device are not by messages here; those that a region does not have do nothing.
impl Slot for Machine {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let mut bytes = vec![0; count as usize];
        let (adapter, host) = self.front_end.rig.server.device_and_host();
        if offset + u64::from(count) <= adapter.region_bytes(region) {
            adapter.read_region(host, region, offset, &mut bytes);
        }
        bytes
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let (adapter, host) = self.front_end.rig.server.device_and_host();
        if offset + data.len() as u64 <= adapter.region_bytes(region) {
            adapter.write_region(host, region, offset, data);
        }
    }

    fn write_memory(&mut self, addr: u32, bytes: &[u8]) {
        self.memory.write(addr.into(), bytes);
    }

    fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        self.memory.read(addr.into(), len)
    }

    fn go(&mut self) {
        self.turn();
    }
}
