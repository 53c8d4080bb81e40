//! Surroundings of the chip in tests: guest memory (shared, and some that is not), and targets that keep their promises.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use lsi_driver::slot::WINDOWS;
use lsi53c895a::chip::{
    AbortOutcome, BarAddresses, BusFault, CheckConditionCause, DmaId, PciBus, PhaseAfterCommand,
    ResetScope, TagAttribute, TargetAndLun, Targets, TaskSlotId, TaskStartOutcome,
};

pub const BARS: BarAddresses = BarAddresses {
    io: WINDOWS[0],
    registers: WINDOWS[1],
    ram: WINDOWS[2],
};

/// Mapped guest memory, from address 0.
pub const MEMORY: usize = 1 << 20;

/// Guest memory that is not shared.
pub const FAR: u64 = 0x4000_0000;
pub const FAR_BYTES: usize = 1 << 16;

pub const BLOCK: usize = 512;

pub const GOOD: u8 = 0;
pub const CHECK_CONDITION: u8 = 2;

/// A task as the fake targets see it.
pub struct FakeTask {
    pub nexus: TargetAndLun,
    pub attribute: TagAttribute,
    pub cdb: Vec<u8>,
    pub segments: Vec<(*mut u8, usize)>,
    pub len: u64,
    pub refused: Option<CheckConditionCause>,
    pub aborted: bool,
}

pub struct World {
    pub memory: Box<[u8]>,
    pub far: Vec<u8>,
    /// Accesses to it that were not answered yet.
    pub asked: VecDeque<(DmaId, u64, Result<Vec<u8>, usize>)>,
    next_dma: DmaId,
    pub disk: Vec<u8>,
    pub present: Vec<u8>,
    pub tasks: BTreeMap<(u16, u32), FakeTask>,
    pub running: Vec<TaskSlotId>,
    pub resets: Vec<ResetScope>,
    pub aborts: usize,
    pub ended: Vec<(TaskSlotId, bool)>,
    /// Whether the disk holds on to memory of aborted tasks for a while.
    pub holds_on: bool,
    pub most_in_flight: usize,
    pub runs: Vec<u64>,
    /// What stood at [`WATCHED`] each time that the pin went up within a run.
    pub interrupted: Vec<u8>,
}

/// A byte of memory.
pub const WATCHED: u32 = 0x3800;

fn key(task: TaskSlotId) -> (u16, u32) {
    (task.index, task.generation)
}

impl World {
    /// Targets 0 to 6 and 8 to 15.
    pub fn new() -> Self {
        let disk = (0..MEMORY)
            .map(|i| u8::try_from(i / BLOCK % 251).unwrap() ^ u8::try_from(i % 7).unwrap())
            .collect();
        World {
            memory: vec![0; MEMORY].into_boxed_slice(),
            far: vec![0; FAR_BYTES],
            asked: VecDeque::new(),
            next_dma: 0,
            disk,
            present: (0..16).filter(|id| *id != 7).collect(),
            tasks: BTreeMap::new(),
            running: Vec::new(),
            resets: Vec::new(),
            aborts: 0,
            ended: Vec::new(),
            holds_on: false,
            most_in_flight: 0,
            runs: Vec::new(),
            interrupted: Vec::new(),
        }
    }

    fn range(&self, addr: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(addr).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.memory.len()).then_some(start..end)
    }

    pub fn task(&self, id: TaskSlotId) -> &FakeTask {
        &self.tasks[&key(id)]
    }

    /// Moves the data of a read or write between the disk and the guest.
    pub fn transfer(&mut self, id: TaskSlotId) {
        let task = &self.tasks[&key(id)];
        let lba = usize::try_from(u32::from_be_bytes(task.cdb[2..6].try_into().unwrap())).unwrap();
        let mut at = lba * BLOCK;
        for &(base, len) in &task.segments {
            // SAFETY: the chip gave this memory for the task; no other code accesses it meanwhile.
            let guest = unsafe { std::slice::from_raw_parts_mut(base, len) };
            if task.cdb[0] == 0x28 {
                guest.copy_from_slice(&self.disk[at..at + len]);
            } else {
                self.disk[at..at + len].copy_from_slice(guest);
            }
            at += len;
        }
    }
}

impl PciBus for World {
    fn first_contiguous_part(
        &mut self,
        addr: u64,
        len: usize,
        _write: bool,
    ) -> Option<(NonNull<u8>, usize)> {
        let own =
            |base: u32, bytes: u64| (u64::from(base)..u64::from(base) + bytes).contains(&addr);
        let is_own = own(BARS.registers, 0x400) || own(BARS.ram, 0x2000);
        assert!(!is_own, "{addr:#x} is the chip's");
        let start = usize::try_from(addr).ok()?;
        let there = self.memory.get_mut(start..)?;
        let len = len.min(there.len());
        (len > 0).then(|| (NonNull::from(&mut there[0]), len))
    }

    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool {
        let Some(range) = self.range(addr, data.len()) else {
            return false;
        };
        data.copy_from_slice(&self.memory[range]);
        true
    }

    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool {
        let Some(range) = self.range(addr, data.len()) else {
            return false;
        };
        self.memory[range].copy_from_slice(data);
        true
    }

    fn start_dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, BusFault> {
        self.next_dma += 1;
        self.asked.push_back((self.next_dma, addr, Err(len)));
        Ok(self.next_dma)
    }

    fn start_dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, BusFault> {
        self.next_dma += 1;
        self.asked
            .push_back((self.next_dma, addr, Ok(data.to_vec())));
        Ok(self.next_dma)
    }

    fn on_interrupt_asserted(&mut self) {
        self.interrupted.push(self.memory[WATCHED as usize]);
    }
}

impl Targets for World {
    fn has_target(&mut self, target: u8) -> bool {
        self.present.contains(&target)
    }

    fn receive_command(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        let before = self.tasks.insert(
            key(task),
            FakeTask {
                nexus,
                attribute,
                cdb: cdb.to_vec(),
                segments: Vec::new(),
                len: 0,
                refused: None,
                aborted: false,
            },
        );
        assert!(before.is_none(), "a name is used once");
        match cdb[0] {
            0x03 => PhaseAfterCommand::DataIn(u64::from(cdb[4]).min(18)),
            0x12 => PhaseAfterCommand::DataIn(u64::from(cdb[4]).min(36)),
            0x28 | 0x2a => {
                let bytes = u64::from(u16::from_be_bytes([cdb[7], cdb[8]])) * BLOCK as u64;
                if cdb[0] == 0x28 {
                    PhaseAfterCommand::DataIn(bytes)
                } else {
                    PhaseAfterCommand::DataOut(bytes)
                }
            }
            _ => PhaseAfterCommand::Status,
        }
    }

    fn replace_by_failing_task(
        &mut self,
        task: TaskSlotId,
        nexus: TargetAndLun,
        refusal: CheckConditionCause,
    ) {
        let refused = self.tasks.entry(key(task)).or_insert(FakeTask {
            nexus,
            attribute: TagAttribute::Untagged,
            cdb: vec![0xff],
            segments: Vec::new(),
            len: 0,
            refused: None,
            aborted: false,
        });
        refused.refused = Some(refusal);
    }

    fn run_or_queue_task(
        &mut self,
        id: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome {
        self.runs.push(len);
        let task = self.tasks.get_mut(&key(id)).expect("received before");
        task.segments = segments
            .iter()
            .map(|piece| (piece.iov_base.cast(), piece.iov_len))
            .collect();
        task.len = len;
        assert_eq!(
            task.segments
                .iter()
                .map(|(_, len)| *len as u64)
                .sum::<u64>(),
            len
        );
        if task.refused.is_some() {
            return TaskStartOutcome::Finished(CHECK_CONDITION);
        }
        match task.cdb[0] {
            0x28 | 0x2a | 0x35 => {
                self.running.push(id);
                self.most_in_flight = self.most_in_flight.max(self.running.len());
                TaskStartOutcome::Later
            }
            0x03 | 0x12 => {
                let mut byte = b'a';
                for &(base, len) in &task.segments {
                    for i in 0..len {
                        // SAFETY: as above: the task's memory.
                        unsafe { base.add(i).write(byte) };
                        byte = if byte == b'z' { b'a' } else { byte + 1 };
                    }
                }
                TaskStartOutcome::Finished(GOOD)
            }
            0x00 => TaskStartOutcome::Finished(GOOD),
            _ => TaskStartOutcome::Finished(CHECK_CONDITION),
        }
    }

    fn abort_task(&mut self, id: TaskSlotId) -> AbortOutcome {
        let task = self.tasks.get_mut(&key(id)).expect("received before");
        assert!(!task.aborted, "aborted once");
        task.aborted = true;
        self.aborts += 1;
        if self.running.contains(&id) && self.holds_on {
            return AbortOutcome::Later;
        }
        self.running.retain(|running| *running != id);
        AbortOutcome::Done
    }

    fn release_finished_task(&mut self, id: TaskSlotId, reported: bool) {
        assert!(!self.tasks[&key(id)].aborted, "it had finished");
        assert!(!self.running.contains(&id));
        self.ended.push((id, reported));
    }

    fn reset_units(&mut self, what: ResetScope) {
        self.resets.push(what);
    }
}
