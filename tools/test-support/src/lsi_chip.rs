//! The LSI 53C895A alone: a machine whose driver on the CPU accesses the chip, with guest memory, some of which is not shared, and fake
//! targets.
//!
//! Memory and targets check what the chip asks of them: a task's name is used once; a task is run, aborted and released at most once,
//! with all the memory that it wants; and a run asks for no more than its limit allows.

mod world;

use std::sync::LazyLock;

use lsi_driver::offsets::{DSP, DSPS, DSTAT, ISTAT0, SIST0, SIST1};
use lsi_driver::slot::{Slot, WINDOWS};
use lsi53c895a::chip::{
    Bar, BarAddresses, BusFault, Chip, MAX_TASKS, RunOutcome, RunParameters, TaskSlotId,
};

use world::Stage;
pub use world::{
    BLOCK, CHECK_CONDITION, FAR, FAR_BYTES, FakeTask, GOOD, PendingAccess, WATCHED, World, letters,
};

/// Where firmware has put the windows.
pub const BARS: BarAddresses = BarAddresses {
    io: WINDOWS[0],
    registers: WINDOWS[1],
    ram: WINDOWS[2],
};

/// What a new disk of a [`Machine`] holds: made once, since this crate is not optimised.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let byte = |at: usize| ((at / BLOCK % 251) ^ (at % 7)).to_le_bytes()[0];
    (0..1 << 20).map(byte).collect()
});

/// The chip in its world.
pub struct Machine {
    /// The chip.
    pub chip: Chip,
    /// Around it.
    pub world: World,
    /// The time of runs.
    pub now_ns: u64,
    /// Instructions per run.
    pub limit: u32,
}

impl Machine {
    /// With a MiB of memory, and a disk of the same size.
    #[must_use]
    #[allow(
        clippy::new_without_default,
        reason = "for tests, which say it as they say others"
    )]
    pub fn new() -> Self {
        let mut world = World::new(1 << 20);
        world.disk.clone_from(&PATTERN);
        Machine::around(world)
    }

    /// A machine whose guest has set the BARs.
    #[must_use]
    pub fn around(world: World) -> Self {
        let mut chip = Chip::new();
        chip.set_bars(BARS);
        Machine {
            chip,
            world,
            now_ns: 1,
            limit: 500,
        }
    }

    /// One run.
    pub fn run(&mut self) -> RunOutcome {
        self.world.calls = 0;
        let limits = RunParameters {
            instructions: self.limit,
            now_ns: self.now_ns,
        };
        let run = self.chip.run(&mut self.world, limits);
        // An instruction asks for a few things; a reset, or an abort of all, for something per task.
        let most = 16 * (self.limit as usize + 1) + 2 * MAX_TASKS;
        let calls = self.world.calls;
        assert!(
            calls <= most,
            "{calls} calls in {} instructions",
            self.limit
        );
        run
    }

    /// Answers the oldest access to memory that is not shared: an error unless it `succeeds` and there is memory.
    pub fn answer_memory(&mut self, succeeds: bool) -> bool {
        let Some((id, addr, access)) = self.world.asked.pop_front() else {
            return false;
        };
        let far = &mut self.world.far;
        let len = match &access {
            PendingAccess::Read(len) => *len,
            PendingAccess::Write(data) => data.len(),
        };
        let range = addr.checked_sub(FAR.into()).filter(|_| succeeds);
        let result = match (range.and_then(|at| World::range(far, at, len)), access) {
            (None, _) => Err(BusFault),
            (Some(range), PendingAccess::Read(_)) => Ok(&far[range]),
            (Some(range), PendingAccess::Write(data)) => {
                far[range].copy_from_slice(&data);
                Ok(&[][..])
            }
        };
        self.chip.on_dma_done(id, result);
        true
    }

    /// The disk finishes a task that runs, and the chip goes on.
    pub fn finish(&mut self, id: TaskSlotId) {
        self.finish_quietly(id, GOOD);
        self.go();
    }

    /// The disk finishes a task with a status.
    pub fn finish_quietly(&mut self, id: TaskSlotId, status: u8) {
        let running = &mut self.world.running;
        let at = running.iter().position(|running| *running == id);
        running.remove(at.expect("it runs"));
        self.world.transfer(id);
        let task = self.world.tasks.get_mut(&id).unwrap();
        task.stage = match task.stage {
            Stage::Running => Stage::Finished,
            Stage::HeldOn => Stage::Over,
            stage => panic!("{stage:?}"),
        };
        self.chip.on_task_finished_or_drained(id, status);
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
        let dsp = self.read32(DSP);
        assert_eq!(
            found,
            (sist0, sist1, 0x80),
            "sist0, sist1, dstat; dsp {dsp:#x}"
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
        let memory = match addr.checked_sub(FAR) {
            Some(at) => &mut self.world.far[at as usize..],
            None => &mut self.world.memory[addr as usize..],
        };
        memory[..bytes.len()].copy_from_slice(bytes);
    }

    fn peek(&self, addr: u32, len: usize) -> Vec<u8> {
        let memory = match addr.checked_sub(FAR) {
            Some(at) => &self.world.far[at as usize..],
            None => &self.world.memory[addr as usize..],
        };
        memory[..len].to_vec()
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
            if !self.answer_memory(true) {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

fn bar(region: u32) -> Bar {
    [Bar::Io, Bar::Registers, Bar::Ram][region as usize]
}
