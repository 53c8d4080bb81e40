//! Machine for tests: the chip with guest memory and fake targets, as a driver on the CPU accesses it.

use lsi53c895a::chip::{Bar, BusFault, Chip, RunOutcome, RunParameters, TaskSlotId};

pub use crate::world::*;
pub use lsi_driver::offsets::*;
pub use lsi_driver::slot::Slot;

pub type Driver = lsi_driver::driver::Driver<Machine>;

pub struct Machine {
    pub chip: Chip,
    pub world: World,
    pub now_ns: u64,
    /// Instructions per run.
    pub limit: u32,
}

impl Machine {
    /// A machine whose guest has set the BARs.
    pub fn new() -> Self {
        let mut chip = Chip::new();
        chip.set_bars(BARS);
        Machine {
            chip,
            world: World::new(),
            now_ns: 1,
            limit: 500,
        }
    }

    /// One run.
    pub fn run(&mut self) -> RunOutcome {
        let limits = RunParameters {
            instructions: self.limit,
            now_ns: self.now_ns,
        };
        self.chip.run(&mut self.world, limits)
    }

    /// Answers the oldest access to memory that is not shared.
    pub fn answer_memory(&mut self) -> bool {
        let Some((id, addr, what)) = self.world.asked.pop_front() else {
            return false;
        };
        let len = what.as_ref().map_or_else(|len| *len, Vec::len);
        let range = addr
            .checked_sub(FAR)
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| Some(start..start.checked_add(len)?))
            .filter(|range| range.end <= FAR_BYTES);
        match (range, what) {
            (None, _) => self.chip.on_dma_done(id, Err(BusFault)),
            (Some(range), Ok(data)) => {
                self.world.far[range].copy_from_slice(&data);
                self.chip.on_dma_done(id, Ok(&[]));
            }
            (Some(range), Err(_)) => self.chip.on_dma_done(id, Ok(&self.world.far[range])),
        }
        true
    }

    /// The disk finishes a task that runs, and the chip goes on.
    pub fn finish(&mut self, id: TaskSlotId) {
        self.finish_quietly(id);
        self.go();
    }

    pub fn finish_quietly(&mut self, id: TaskSlotId) {
        let before = self.world.running.len();
        self.world.running.retain(|running| *running != id);
        assert_eq!(self.world.running.len() + 1, before, "it ran");
        if matches!(self.world.task(id).cdb[0], 0x28 | 0x2a) {
            self.world.transfer(id);
        }
        self.chip.on_task_finished_or_drained(id, GOOD);
    }

    /// What stopped SCRIPTS: the code of an INT instruction.
    #[track_caller]
    pub fn expect_int(&mut self, code: u32) {
        let istat = self.read8(ISTAT0);
        let (dstat, sist0, sist1) = (self.read8(DSTAT), self.read8(SIST0), self.read8(SIST1));
        let (dsp, dsps) = (self.read32(DSP), self.read32(DSPS));
        assert_eq!(
            (istat & 0x03, dstat, sist0, sist1, dsps),
            (0x01, 0x84, 0, 0, code),
            "istat0, dstat, sist0, sist1, dsps; dsp {dsp:#x}"
        );
    }

    /// A phase, selection or bus interrupt: SIST0 and SIST1, with nothing in DSTAT.
    #[track_caller]
    pub fn expect_scsi(&mut self, sist0: u8, sist1: u8) {
        let found = (self.read8(SIST0), self.read8(SIST1), self.read8(DSTAT));
        assert_eq!(
            found,
            (sist0, sist1, 0x80),
            "sist0, sist1, dstat; dsp {:#x}",
            self.read32(DSP)
        );
    }
}

impl Slot for Machine {
    fn read(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        let mut bytes = vec![0; count as usize];
        self.chip.read_window(bar(region), offset, &mut bytes);
        bytes
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.chip.write_window(bar(region), offset, data);
    }

    fn write_memory(&mut self, addr: u32, bytes: &[u8]) {
        let at = usize::try_from(addr).unwrap();
        self.world.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        let at = usize::try_from(addr).unwrap();
        self.world.memory[at..at + len].to_vec()
    }

    fn irq_level(&mut self) -> bool {
        self.chip.irq_level()
    }

    /// Also answers accesses to memory that is not shared.
    fn go(&mut self) {
        for _ in 0..100_000 {
            while self.chip.wants_run() {
                self.run();
            }
            if !self.answer_memory() {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

fn bar(region: u32) -> Bar {
    [Bar::Io, Bar::Registers, Bar::Ram][region as usize]
}
