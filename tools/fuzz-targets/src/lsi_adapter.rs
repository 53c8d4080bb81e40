//! The chip in its slot, behind a socket, with SCSI disks: what a guest and its monitor do, and disks in any order.
//!
//! Requests to disks are for blocks that are there, and have the memory that they say, which stays until they are done, whatever
//! the monitor takes back; every command of the monitor's has its reply once the disks are done; and after a reset
//! the next command works.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use block::{DiskCall, DiskIo, Request};
use engine::Errno;
use lsi53c895a::adapter::{Adapter, Disk};
use scsi::Unit;
use vfio_user::PciDevice;
use vfio_user::wire::{CONFIG_REGION, command};

use crate::disk::{Contents, DISK, allocations, check, geometry, keeping};
use crate::front_end::FrontEnd;
use crate::input::Input;
use crate::scripts::{
    self, ANSWER, BARS, COMMAND, DATA, FAR, FAR_BYTES, MEMORY, MESSAGE, one_command, piece,
};
use crate::shared::Shared;

const IO: u32 = 0;
const REGISTERS: u32 = 1;
const RAM: u32 = 2;
const DSP: u64 = 0x2c;
const SCID: u64 = 0x04;

/// Target and unit of each disk.
const PLACES: [(u8, u8); 3] = [(0, 0), (0, 1), (3, 0)];

const EVENTS: usize = 300;

/// What a slot waits for.
enum Waits {
    Disk(usize, Request),
    Call(DiskCall),
}

/// What disks have not yet done.
struct Disks {
    contents: Vec<Contents>,
    waiting: Vec<(u32, Waits)>,
    slots: BTreeSet<u32>,
    /// Requests that all of them take.
    room: usize,
}

impl DiskIo for Disks {
    fn room(&self, _: u32) -> usize {
        self.room.saturating_sub(self.waiting.len())
    }

    unsafe fn submit(&mut self, disk: u32, request: Request) {
        assert!(self.waiting.len() < self.room, "there is room");
        let slot = u32::try_from(request.token).expect("a number of the adapter's");
        assert!(self.slots.insert(slot), "one request of a slot");
        check(&request);
        self.waiting
            .push((slot, Waits::Disk(disk as usize, request)));
    }

    fn submit_blocking_call(&mut self, _: u32, call: DiskCall, slot: u32) {
        assert!(self.slots.insert(slot), "one request of a slot");
        self.waiting.push((slot, Waits::Call(call)));
    }
}

struct Machine {
    front_end: FrontEnd<Adapter>,
    disks: Disks,
    units: Vec<Arc<Unit>>,
    memory: &'static Shared,
    far: Vec<u8>,
    /// Where the next piece of program goes.
    at: u32,
}

thread_local! {
    static GUEST_MEMORY: &'static Shared = Shared::new(MEMORY);
    /// Memory of disks, to be used again.
    static CONTENTS: RefCell<Vec<Contents>> = RefCell::new(PLACES.map(|_| Contents::new()).into());
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut machine = Machine::new();
    input.events(EVENTS, |input| {
        machine.event(input);
        let adapter = machine.front_end.server.device_and_host().0;
        assert_eq!(adapter.in_flight_count(), machine.disks.waiting.len());
    });
    machine.recovers();
    CONTENTS.set(machine.disks.contents);
}

impl Machine {
    fn new() -> Self {
        let unit = |_| Arc::new(Unit::new(keeping(), geometry()).expect("a disk"));
        let units: Vec<_> = PLACES.iter().map(unit).collect();
        let disks: Vec<_> = PLACES
            .iter()
            .zip(&units)
            .map(|(&(target, lun), unit)| Disk {
                target,
                lun,
                unit: unit.clone(),
            })
            .collect();
        let memory = GUEST_MEMORY.with(|memory| *memory);
        memory.clear();
        let mut machine = Machine {
            front_end: FrontEnd::new(Adapter::new("fuzz", &disks).expect("disks")),
            disks: Disks {
                contents: CONTENTS.take(),
                waiting: Vec::new(),
                slots: BTreeSet::new(),
                room: 64,
            },
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
        self.front_end.map(FAR, FAR_BYTES as u64, None);
        self.set_up();
    }

    fn share(&mut self) {
        self.front_end.map(0, MEMORY as u64, Some(self.memory.fd()));
    }

    fn set_up(&mut self) {
        for (offset, value) in [
            (0x10, BARS.io),
            (0x14, BARS.registers),
            (0x18, BARS.ram),
            (4, 7),
        ] {
            self.write(CONFIG_REGION, offset, &value.to_le_bytes());
        }
        self.write(IO, SCID, &[0x47]);
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let (adapter, host) = self.front_end.server.device_and_host();
        let len = bytes.len() as u64;
        if offset + len <= adapter.region_bytes(region) {
            adapter.write_region(host, region, offset, bytes);
        }
    }

    fn read(&mut self, region: u32, offset: u64, bytes: &mut [u8]) {
        let (adapter, host) = self.front_end.server.device_and_host();
        let len = bytes.len() as u64;
        if offset + len <= adapter.region_bytes(region) {
            adapter.read_region(host, region, offset, bytes);
        }
    }

    /// Writes guest memory, or the chip's own.
    fn poke(&mut self, addr: u32, bytes: &[u8]) {
        match addr.checked_sub(BARS.ram) {
            Some(offset) => self.write(RAM, offset.into(), bytes),
            None => self.memory.write(addr as usize, bytes),
        }
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 26 {
            0 => {
                let (register, byte) = (input.byte(), input.byte());
                self.write(IO, register.into(), &[byte]);
            }
            1 => {
                let (register, word) = (input.byte() & 0xfc, input.u32());
                self.write(REGISTERS, register.into(), &word.to_le_bytes());
            }
            2 => {
                let offset = input.u16();
                self.read(REGISTERS, offset.into(), &mut [0; 4]);
            }
            3 => {
                let (offset, bytes) = (input.byte(), input.array::<4>());
                let len = [1, 2, 4, 3][input.below(4)];
                self.write(CONFIG_REGION, offset.into(), &bytes[..len]);
            }
            4 => {
                let at = input.u16();
                let bytes = input.bytes(8);
                self.memory.write(at.into(), bytes);
            }
            5..=9 => {
                let bytes: Vec<u8> = piece(input)
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
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
                self.write(REGISTERS, DSP, &from.to_le_bytes());
                self.turn();
            }
            16 | 17 => self.turn(),
            18 | 19 => {
                let (which, fails) = (input.byte(), input.byte() & 7 == 7);
                self.complete(which.into(), fails);
            }
            20 | 21 => {
                let succeeds = input.byte() & 7 != 7;
                self.front_end.answer(FAR, &mut self.far, succeeds);
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
                3 => self.front_end.unmap(FAR, FAR_BYTES as u64),
                4 => self.front_end.map(FAR, FAR_BYTES as u64, None),
                _ => self.plug(),
            },
        }
    }

    /// Where a program may stand.
    fn base(&self, input: &mut Input) -> u32 {
        let offset = u32::from(input.byte()) * 4;
        [0, BARS.ram][input.below(2)] + offset
    }

    fn pass_time(&mut self, ns: u64) {
        self.front_end.now_ns += ns;
        let now_ns = self.front_end.now_ns;
        self.front_end
            .server
            .device_and_host()
            .0
            .advance_time(now_ns);
    }

    /// What an iothread does.
    fn turn(&mut self) {
        for _ in 0..2 {
            let more = self.front_end.server.do_pending_work(self.front_end.now_ns);
            let adapter = self.front_end.server.device_and_host().0;
            adapter.submit_queued_requests(&mut self.disks);
            self.front_end.receive();
            if !more {
                break;
            }
        }
    }

    /// A disk has done what it was asked, or not.
    fn complete(&mut self, which: usize, fails: bool) {
        if self.disks.waiting.is_empty() {
            return;
        }
        let which = which % self.disks.waiting.len();
        let (slot, waits) = self.disks.waiting.remove(which);
        self.disks.slots.remove(&slot);
        let result = match waits {
            _ if fails => Err(Errno::IO),
            Waits::Call(call) => call.run_with_allocations(allocations),
            Waits::Disk(disk, request) => {
                self.disks.contents[disk].carry_out(&request);
                Ok(())
            }
        };
        self.front_end
            .server
            .device_and_host()
            .0
            .complete_request(slot, result);
    }

    /// Whatever the guest did, a reset makes a working adapter of it.
    fn recovers(&mut self) {
        self.disks.room = 64;
        for unit in &self.units {
            unit.resize(DISK as u64);
        }
        if self.front_end.is_connected() {
            self.front_end.command(command::DEVICE_RESET, &[], None);
        } else {
            self.plug();
            self.front_end.command(command::DEVICE_RESET, &[], None);
        }
        for _ in 0..2000 {
            self.turn();
            while !self.disks.waiting.is_empty() {
                self.complete(0, false);
            }
            while self.front_end.asked() {
                self.front_end.answer(FAR, &mut self.far, true);
            }
            self.pass_time(200_000);
            if self.front_end.waiting() == 0 {
                break;
            }
        }
        assert!(self.front_end.is_connected());
        assert_eq!(self.front_end.waiting(), 0, "all commands have their reply");
        let adapter = self.front_end.server.device_and_host().0;
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
        self.write(REGISTERS, DSP, &0x100u32.to_le_bytes());
        self.turn();
        assert_eq!(
            self.memory.read(ANSWER as usize, 2),
            [0, 0],
            "GOOD, COMMAND COMPLETE"
        );
        assert_eq!(self.memory.read(0x1000, 2), [0, 0], "a disk");
        let mut dsps = [0; 4];
        self.read(REGISTERS, 0x30, &mut dsps);
        assert_eq!(u32::from_le_bytes(dsps), 0x1234);
    }
}
