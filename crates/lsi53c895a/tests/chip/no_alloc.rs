//! Reads and writes in mapped memory allocate nothing, once each slot has held a list as long.

use std::ptr::NonNull;

use lsi53c895a::chip::{
    AbortOutcome, Bar, BarAddresses, BusFault, CheckConditionCause, Chip, DmaId, PciBus,
    PhaseAfterCommand, ResetScope, RunParameters, TagAttribute, TargetAndLun, Targets, TaskSlotId,
    TaskStartOutcome,
};

#[global_allocator]
static ALLOCATOR: test_support::allocations::Counting = test_support::allocations::Counting;

const DISK_BYTES: u64 = 4096;

/// Guest memory, and a target that takes every command for a read or write of 4 KiB.
struct Host {
    memory: Box<[u8]>,
    running: Option<TaskSlotId>,
}

impl PciBus for Host {
    fn first_contiguous_part(
        &mut self,
        addr: u64,
        len: usize,
        _write: bool,
    ) -> Option<(NonNull<u8>, usize)> {
        let there = self.memory.get_mut(usize::try_from(addr).ok()?..)?;
        let len = len.min(there.len());
        (len > 0).then(|| (NonNull::from(&mut there[0]), len))
    }

    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool {
        let at = usize::try_from(addr).unwrap();
        let Some(there) = self.memory.get(at..at + data.len()) else {
            return false;
        };
        data.copy_from_slice(there);
        true
    }

    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool {
        let at = usize::try_from(addr).unwrap();
        let Some(there) = self.memory.get_mut(at..at + data.len()) else {
            return false;
        };
        there.copy_from_slice(data);
        true
    }

    fn start_dma_read(&mut self, _addr: u64, _len: usize) -> Result<DmaId, BusFault> {
        Err(BusFault)
    }

    fn start_dma_write(&mut self, _addr: u64, _data: &[u8]) -> Result<DmaId, BusFault> {
        Err(BusFault)
    }
}

impl Targets for Host {
    fn has_target(&mut self, target: u8) -> bool {
        target == 0
    }

    fn receive_command(
        &mut self,
        _task: TaskSlotId,
        _nexus: TargetAndLun,
        _attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        if cdb[0] == 0x28 {
            PhaseAfterCommand::DataIn(DISK_BYTES)
        } else {
            PhaseAfterCommand::DataOut(DISK_BYTES)
        }
    }

    fn replace_by_failing_task(
        &mut self,
        _task: TaskSlotId,
        _nexus: TargetAndLun,
        _refusal: CheckConditionCause,
    ) {
    }

    fn run_or_queue_task(
        &mut self,
        task: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome {
        assert_eq!((segments.len(), len), (2, DISK_BYTES));
        self.running = Some(task);
        TaskStartOutcome::Later
    }

    fn abort_task(&mut self, _task: TaskSlotId) -> AbortOutcome {
        AbortOutcome::Done
    }

    fn release_finished_task(&mut self, _task: TaskSlotId, _reported: bool) {}

    fn reset_units(&mut self, _what: ResetScope) {}
}

#[test]
fn commands_allocate_nothing() {
    let mut host = Host {
        memory: vec![0; 1 << 16].into_boxed_slice(),
        running: None,
    };
    let mut chip = Chip::new();
    chip.set_bars(BarAddresses {
        io: 0xc000,
        registers: 0xfe00_0000,
        ram: 0xfe01_0000,
    });
    // Message, command, and programs for a read and a write.
    host.memory[0x100..0x103].copy_from_slice(&[0xc0, 0x20, 1]);
    for (base, opcode, phase) in [(0x1000usize, 0x28u8, 1u32), (0x2000, 0x2a, 0)] {
        let cdb = base + 0x200;
        host.memory[cdb..cdb + 10].copy_from_slice(&[opcode, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
        let words = [
            [0x4100_0000, 0],
            [0x0600_0003, 0x100],
            [0x0200_000a, u32::try_from(cdb).unwrap()],
            [phase << 24 | 1024, 0x4000],
            [phase << 24 | 3072, 0x8000],
            [0x0700_0002, 0x300],
            [0x4800_0000, 0],
            [0x5000_0000, 0],
            [0x0700_0003, 0x300],
            [0x0300_0001, 0x300],
            [0x0700_0001, 0x301],
            [0x4800_0000, 0],
            [0x9808_0000, 1],
        ];
        for (place, word) in host.memory[base..].chunks_mut(4).zip(words.concat()) {
            place.copy_from_slice(&u32::to_le_bytes(word));
        }
    }
    let limits = RunParameters {
        instructions: 500,
        now_ns: 1,
    };
    let mut before = 0;
    for i in 0..200u32 {
        if i == 2 {
            before = test_support::allocations::of_this_thread();
        }
        let program = if i % 2 == 0 { 0x1000u32 } else { 0x2000 };
        chip.write_window(Bar::Io, 0x2c, &program.to_le_bytes());
        chip.run(&mut host, limits);
        chip.on_task_finished_or_drained(host.running.take().unwrap(), 0);
        chip.run(&mut host, limits);
        let mut dstat = [0];
        chip.read_window(Bar::Io, 0x0c, &mut dstat);
        assert_eq!(dstat, [0x84]);
        assert_eq!(host.memory[0x300..0x302], [0, 0]);
    }
    assert_eq!(test_support::allocations::of_this_thread(), before);
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(
        test_support::allocations::of_this_thread(),
        before + 1,
        "the counter counts"
    );
}
