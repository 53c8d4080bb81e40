//! The chip alone: register accesses, SCRIPTS in all kinds of memory, and answers of disks and of memory out of order.
//!
//! Whatever they did: a run comes back, having asked for no more than its limit allows; a task's name is used once, and it is
//! run, aborted and ended at most once, with what memory it wanted; what is in flight is what the disks have; and
//! after a reset the next command works.

mod world;

use lsi53c895a::chip::{Bar, Chip, RunOutcome, RunParameters};

use crate::input::Input;
use crate::scripts::{
    ANSWER, BARS, COMMAND, DATA, FAR, FAR_BYTES, MEMORY, MESSAGE, TAGGED, command, one_command,
    piece,
};
use world::World;

const DSP: u64 = 0x2c;
const ISTAT0: u64 = 0x14;
const SCID: u64 = 0x04;
const SIEN0: u64 = 0x40;

/// Events in one input.
const EVENTS: usize = 400;

struct Machine {
    chip: Chip,
    world: World,
    now_ns: u64,
    /// Where the next piece of program goes.
    at: u32,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut machine = Machine::new(input.byte());
    input.events(EVENTS, |input| {
        machine.event(input);
        assert_eq!(
            machine.chip.in_flight_task_count(),
            machine.world.in_flight()
        );
    });
    machine.recovers();
}

impl Machine {
    fn new(flags: u8) -> Self {
        let mut machine = Machine {
            chip: Chip::new(),
            world: World::new(flags & 1 != 0),
            now_ns: 1,
            at: 0,
        };
        machine.chip.set_bars(BARS);
        let enabled = [0u8, 0xff][usize::from(flags >> 1 & 1)];
        machine
            .chip
            .write_window(Bar::Io, SIEN0, &[enabled, enabled]);
        machine.chip.write_window(Bar::Io, SCID, &[0x47]);
        machine
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 25 {
            0 | 1 => self
                .chip
                .write_window(Bar::Io, input.byte().into(), &[input.byte()]),
            2 => {
                let bytes = input.u32().to_le_bytes();
                self.chip
                    .write_window(Bar::Registers, u64::from(input.byte() & 0xfc), &bytes);
            }
            3 => self
                .chip
                .read_window(Bar::Registers, input.u16().into(), &mut [0; 4]),
            4 => self
                .chip
                .write_window(Bar::Ram, input.u16().into(), &input.array::<8>()),
            5 => {
                let offset = usize::from(input.u16());
                let bytes = input.bytes(8);
                self.poke(u32::try_from(offset).expect("16 bits"), bytes);
            }
            6..=10 => {
                let bytes: Vec<u8> = piece(input)
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
                self.poke(self.at, &bytes);
                self.at += u32::try_from(bytes.len()).expect("a few");
            }
            11 | 12 => {
                let (message, cdb) = command(input);
                self.poke(MESSAGE, &message);
                self.poke(COMMAND, &cdb);
            }
            13 => self.at = self.base(input),
            14 | 15 => {
                let from = self.base(input);
                self.chip
                    .write_window(Bar::Registers, DSP, &from.to_le_bytes());
                self.turn(200);
            }
            16 | 17 => self.turn(u32::from(input.byte())),
            18 => self.world.answer_memory(&mut self.chip, input.below(8)),
            19 | 20 => {
                self.world
                    .finish(&mut self.chip, input.byte().into(), 2 * (input.byte() & 1))
            }
            21 => self.now_ns += u64::from(input.u32()),
            22 => match input.below(8) {
                0 => self.chip.reset_and_clear_ram(),
                1 | 2 => self.world.lose_memory(&mut self.chip),
                3 => self.chip.set_bars(Default::default()),
                4 => self.world.faults = input.flag(),
                _ => self.chip.set_bars(BARS),
            },
            23 => self.send_many(input.byte(), input.byte()),
            _ => {
                // As a driver whose interrupt is raised.
                for register in [ISTAT0, 0x0c, 0x42, 0x43] {
                    let mut byte = [0];
                    self.chip.read_window(Bar::Io, register, &mut byte);
                    if register == ISTAT0 {
                        self.chip.write_window(Bar::Io, register, &byte);
                    }
                }
            }
        }
    }

    /// Many commands that run at the same time: reads of one block, with tags from `first` on.
    fn send_many(&mut self, first: u8, count: u8) {
        let bytes: Vec<u8> = TAGGED.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.poke(0x200, &bytes);
        self.poke(COMMAND, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        for tag in 0..count {
            self.poke(MESSAGE, &[0xc0 | first & 7, 0x20, first.wrapping_add(tag)]);
            self.chip
                .write_window(Bar::Registers, DSP, &0x200u32.to_le_bytes());
            self.turn(40);
        }
    }

    /// Where a program may stand.
    fn base(&self, input: &mut Input) -> u32 {
        let offset = u32::from(input.byte()) * 4;
        match input.below(3) {
            0 => offset,
            1 => BARS.ram + offset,
            _ => u32::try_from(FAR).expect("32 bits") + offset,
        }
    }

    /// Writes guest memory, or the chip's own.
    fn poke(&mut self, addr: u32, bytes: &[u8]) {
        if let Some(offset) = addr.checked_sub(BARS.ram) {
            return self.chip.write_window(Bar::Ram, offset.into(), bytes);
        }
        let addr = u64::from(addr);
        if let Some(offset) = addr.checked_sub(FAR) {
            let at = usize::try_from(offset)
                .expect("64 bits")
                .min(FAR_BYTES - bytes.len());
            return self.world.far[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let at = usize::try_from(addr)
            .expect("64 bits")
            .min(MEMORY - bytes.len());
        self.world.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn turn(&mut self, instructions: u32) {
        // A program that writes registers may ask for a run that finds nothing to do, but not again and again.
        for _ in 0..3 {
            self.world.begin_run();
            let limits = RunParameters {
                instructions,
                now_ns: self.now_ns,
            };
            let run = self.chip.run(&mut self.world, limits);
            self.world.end_run(instructions);
            if run != RunOutcome::Idle || !self.chip.wants_run() {
                return;
            }
        }
        panic!("it has run, nothing has happened since, and it wants to run");
    }

    /// Whatever the guest did, a reset makes a working chip of it.
    fn recovers(&mut self) {
        self.world.faults = false;
        self.chip.reset_and_clear_ram();
        self.chip.set_bars(BARS);
        self.chip.write_window(Bar::Ram, 0, &[0; 8]);
        self.turn(100);
        while self.world.in_flight() > 0 {
            self.world.finish(&mut self.chip, 0, 0);
        }
        assert_eq!(
            (
                self.chip.in_flight_task_count(),
                self.chip.draining_task_count()
            ),
            (0, 0)
        );
        assert!(!self.chip.irq_level());
        // READ(10) of one block.
        self.poke(0x100, &one_command(3, 10, 512));
        self.poke(MESSAGE, &[0x80]);
        self.poke(COMMAND, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        self.poke(ANSWER, &[0xee, 0xee]);
        self.poke(DATA, &[0; 512]);
        self.chip.write_window(Bar::Io, SCID, &[0x47]);
        self.chip
            .write_window(Bar::Registers, DSP, &0x100u32.to_le_bytes());
        // The chip must ignore replies to requests for memory from before the reset.
        while self.world.asked() {
            self.world.answer_memory(&mut self.chip, 0);
        }
        self.turn(100);
        assert_eq!(
            (self.chip.in_flight_task_count(), self.world.in_flight()),
            (1, 1),
            "a command runs"
        );
        self.world.finish(&mut self.chip, 0, 0);
        self.turn(100);
        let answer = usize::try_from(ANSWER).expect("32 bits");
        assert_eq!(
            self.world.memory[answer..answer + 2],
            [0, 0],
            "GOOD, COMMAND COMPLETE"
        );
        assert_eq!(self.world.memory[0x1000..0x1200], [World::PATTERN; 512]);
        let mut dsps = [0; 4];
        self.chip.read_window(Bar::Registers, 0x30, &mut dsps);
        assert_eq!(u32::from_le_bytes(dsps), 0x1234);
    }
}
