//! The chip alone: register accesses, SCRIPTS in all kinds of memory, and answers of disks and of memory out of order.
//!
//! Whatever they did: a run comes back, having asked for no more than its limit allows; a task's name is used once, and it is
//! run, aborted and ended at most once, with what memory it wanted; what is in flight is what the disks have; and
//! after a reset the next command works.

use lsi_driver::offsets::{DSP, DSPS, DSTAT, ISTAT0, SCID, SIEN0, SIEN1, SIST0, SIST1};
use lsi_driver::slot::Slot;
use lsi53c895a::chip::RunOutcome;
use test_support::lsi_chip::{BARS, FAR, GOOD, Machine, World, letters};

use crate::input::Input;
use crate::scripts::{
    ANSWER, COMMAND, DATA, MEMORY, MESSAGE, PROGRAMS, command, one_command, piece, tagged_command,
};

/// Events in one input.
const EVENTS: usize = 400;

// Windows.
const REGISTERS: u32 = 1;
const RAM: u32 = 2;

struct Rig {
    machine: Machine,
    /// Where the next piece of program goes.
    at: u32,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(input.byte());
    input.events(EVENTS, |input| {
        rig.event(input);
        rig.check_in_flight(rig.machine.world.running.len());
    });
    rig.recovers();
}

impl Rig {
    fn new(flags: u8) -> Self {
        let mut world = World::new(MEMORY);
        // Guest memory may be in pieces.
        world.contiguous_bytes = 0x2000;
        world.present.retain(|target| *target != 15);
        world.holds_on = flags & 1 != 0;
        let mut machine = Machine::around(world);
        let enabled = [0, 0xff][usize::from(flags >> 1 & 1)];
        machine.write8(SIEN0, enabled);
        machine.write8(SIEN1, enabled);
        machine.write8(SCID, 0x47);
        Rig { machine, at: 0 }
    }

    /// The chip and the disks have so many tasks.
    fn check_in_flight(&self, count: usize) {
        let Machine { chip, world, .. } = &self.machine;
        let found = (chip.in_flight_task_count(), world.running.len());
        assert_eq!(found, (count, count));
    }

    fn event(&mut self, input: &mut Input) {
        let machine = &mut self.machine;
        match input.byte() % 25 {
            0 | 1 => machine.write8(input.byte(), input.byte()),
            2 => {
                let word = input.u32();
                machine.write32(input.byte() & 0xfc, word);
            }
            3 => _ = machine.read(REGISTERS, input.u16().into(), 4),
            4 => machine.write(RAM, input.u16().into(), &input.array::<8>()),
            5 => {
                let at = usize::from(input.u16());
                let bytes = input.bytes(8);
                let at = at.min(MEMORY - bytes.len());
                machine.world.memory[at..][..bytes.len()].copy_from_slice(bytes);
            }
            6..=10 => {
                let words = piece(input);
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                machine.poke(self.at, &bytes);
                self.at += u32::try_from(bytes.len()).expect("a few");
            }
            11 | 12 => {
                let (message, cdb) = command(input);
                machine.poke(MESSAGE, &message);
                machine.poke(COMMAND, &cdb);
            }
            13 => self.at = base(input),
            14 | 15 => {
                machine.write32(DSP, base(input));
                self.turn(200);
            }
            16 | 17 => self.turn(u32::from(input.byte())),
            18 => _ = machine.answer_memory(input.below(8) != 0),
            19 | 20 => {
                let (which, status) = (usize::from(input.byte()), 2 * (input.byte() & 1));
                self.finish(which, status);
            }
            21 => machine.now_ns += u64::from(input.u32()),
            22 => match input.below(8) {
                0 => machine.chip.reset_and_clear_ram(),
                // The front-end removes guest memory and adds it again; requests that use it keep it.
                1 | 2 => machine.chip.on_memory_removed(),
                3 => machine.chip.set_bars(Default::default()),
                4 => machine.world.faults = input.flag(),
                _ => machine.chip.set_bars(BARS),
            },
            23 => self.send_many(input.byte(), input.byte()),
            _ => {
                // As a driver whose interrupt is raised.
                for register in [ISTAT0, DSTAT, SIST0, SIST1] {
                    let byte = machine.read8(register);
                    if register == ISTAT0 {
                        machine.write8(register, byte);
                    }
                }
            }
        }
    }

    /// Many commands that run at the same time: reads of one block, with tags from `first` on.
    fn send_many(&mut self, first: u8, count: u8) {
        self.machine.poke(0x200, &tagged_command());
        self.machine
            .poke(COMMAND, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        for tag in 0..count {
            let message = [0xc0 | first & 7, 0x20, first.wrapping_add(tag)];
            self.machine.poke(MESSAGE, &message);
            self.machine.write32(DSP, 0x200);
            self.turn(40);
        }
    }

    /// A disk is done with one of its tasks.
    fn finish(&mut self, which: usize, status: u8) {
        let running = &self.machine.world.running;
        if let Some(at) = which.checked_rem(running.len()) {
            self.machine.finish_quietly(running[at], status);
        }
    }

    fn turn(&mut self, instructions: u32) {
        // A program that writes registers may ask for a run that finds nothing to do, but not again and again.
        self.machine.limit = instructions;
        for _ in 0..3 {
            if self.machine.run() != RunOutcome::Idle || !self.machine.chip.wants_run() {
                return;
            }
        }
        panic!("it has run, nothing has happened since, and it wants to run");
    }

    /// Whatever the guest did, a reset makes a working chip of it.
    fn recovers(&mut self) {
        self.machine.world.faults = false;
        self.machine.chip.reset_and_clear_ram();
        self.machine.chip.set_bars(BARS);
        self.machine.write(RAM, 0, &[0; 8]);
        self.turn(100);
        while !self.machine.world.running.is_empty() {
            self.finish(0, GOOD);
        }
        self.check_in_flight(0);
        assert_eq!(self.machine.chip.draining_task_count(), 0);
        assert!(!self.machine.irq_level());
        // READ(10) of one block.
        let machine = &mut self.machine;
        machine.poke(0x100, &one_command(3, 10, 512));
        machine.poke(MESSAGE, &[0x80]);
        machine.poke(COMMAND, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        machine.poke(ANSWER, &[0xee, 0xee]);
        machine.poke(DATA, &[0; 512]);
        machine.write8(SCID, 0x47);
        machine.write32(DSP, 0x100);
        // The chip must ignore replies to requests for memory from before the reset.
        while machine.answer_memory(false) {}
        self.turn(100);
        self.check_in_flight(1);
        self.finish(0, GOOD);
        self.turn(100);
        let answer = self.machine.peek(ANSWER, 2);
        assert_eq!(answer, [0, 0], "GOOD, COMMAND COMPLETE");
        let expected: Vec<u8> = letters().take(512).collect();
        assert_eq!(self.machine.peek(DATA, 512), expected);
        assert_eq!(self.machine.read32(DSPS), 0x1234);
    }
}

/// Where a program may stand.
fn base(input: &mut Input) -> u32 {
    let offset = u32::from(input.byte()) * 4;
    [PROGRAMS[0], PROGRAMS[1], FAR][input.below(3)] + offset
}
