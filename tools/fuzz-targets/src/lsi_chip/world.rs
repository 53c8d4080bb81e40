//! Surroundings of the chip: memory, shared and not, and targets that check what they get.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;

use lsi53c895a::chip::{
    AbortOutcome, BusFault, CheckConditionCause, Chip, DmaId, MAX_SEGMENTS, MAX_TASKS, PciBus,
    PhaseAfterCommand, ResetScope, TagAttribute, TargetAndLun, Targets, TaskSlotId,
    TaskStartOutcome,
};

use crate::scripts::{FAR, FAR_BYTES, MEMORY};

const BLOCK: u64 = 512;

/// The largest piece in which the chip moves memory.
const CHUNK: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Received,
    Running,
    /// Aborted, and its memory still in use.
    HeldOn,
    Finished,
}

struct Task {
    stage: Stage,
    opcode: u8,
    phase: PhaseAfterCommand,
    refused: bool,
    segments: Vec<(*mut u8, usize)>,
}

enum PendingRequest {
    Read(usize),
    Write(Vec<u8>),
}

pub struct World {
    pub memory: Box<[u8]>,
    pub far: Box<[u8]>,
    /// Accesses to memory that is not shared are refused.
    pub faults: bool,
    asked: VecDeque<(DmaId, u64, PendingRequest)>,
    last_dma: DmaId,
    tasks: BTreeMap<TaskSlotId, Task>,
    /// Those that disks have, in the order in which they came.
    with_disks: Vec<TaskSlotId>,
    /// Which name each slot had last.
    last: [Option<u32>; MAX_TASKS],
    holds_on: bool,
    /// What the run has asked of the world.
    calls: usize,
}

impl World {
    /// The byte that reads of disks return.
    pub const PATTERN: u8 = 0xd5;

    pub fn new(holds_on: bool) -> Self {
        World {
            memory: vec![0; MEMORY].into(),
            far: vec![0; FAR_BYTES].into(),
            faults: false,
            asked: VecDeque::new(),
            last_dma: 0,
            tasks: BTreeMap::new(),
            with_disks: Vec::new(),
            last: [None; MAX_TASKS],
            holds_on,
            calls: 0,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.with_disks.len()
    }

    pub fn asked(&self) -> bool {
        !self.asked.is_empty()
    }

    pub fn begin_run(&mut self) {
        self.calls = 0;
    }

    /// An instruction asks for a few things; a reset, or an abort of all, for something per task.
    pub fn end_run(&mut self, instructions: u32) {
        let most = 16 * (usize::try_from(instructions).expect("32 bits") + 1) + 2 * MAX_TASKS;
        assert!(
            self.calls <= most,
            "{} calls in {instructions} instructions",
            self.calls
        );
    }

    fn range(bytes: &[u8], from: u64, addr: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(addr.checked_sub(from)?).ok()?;
        let end = start.checked_add(len)?;
        (end <= bytes.len()).then_some(start..end)
    }

    /// Answers the oldest access to memory that is not shared, with success unless `how` is 0 or it is nowhere.
    pub fn answer_memory(&mut self, chip: &mut Chip, how: usize) {
        let Some((id, addr, what)) = self.asked.pop_front() else {
            return;
        };
        let len = match &what {
            PendingRequest::Read(len) => *len,
            PendingRequest::Write(data) => data.len(),
        };
        match (World::range(&self.far, FAR, addr, len), what) {
            (Some(range), PendingRequest::Read(_)) if how != 0 => {
                chip.on_dma_done(id, Ok(&self.far[range]))
            }
            (Some(range), PendingRequest::Write(data)) if how != 0 => {
                self.far[range].copy_from_slice(&data);
                chip.on_dma_done(id, Ok(&[]));
            }
            _ => chip.on_dma_done(id, Err(BusFault)),
        }
    }

    /// A disk is done with one of its tasks.
    pub fn finish(&mut self, chip: &mut Chip, which: usize, status: u8) {
        if self.with_disks.is_empty() {
            return;
        }
        let id = self.with_disks.remove(which % self.with_disks.len());
        let task = self.tasks.get_mut(&id).expect("it runs");
        if let PhaseAfterCommand::DataIn(_) = task.phase {
            fill(&task.segments);
        }
        match task.stage {
            Stage::Running => task.stage = Stage::Finished,
            Stage::HeldOn => {
                self.tasks.remove(&id);
            }
            stage => panic!("{stage:?}"),
        }
        chip.on_task_finished_or_drained(id, status);
    }

    /// The front-end removes guest memory and adds it again; requests that use it keep it.
    pub fn lose_memory(&mut self, chip: &mut Chip) {
        chip.on_memory_removed();
    }

    fn take_name(&mut self, id: TaskSlotId) {
        let last = &mut self.last[usize::from(id.index)];
        assert!(
            last.is_none_or(|last| last < id.generation),
            "a name is used once"
        );
        *last = Some(id.generation);
    }
}

/// Reads into a task's memory.
fn fill(segments: &[(*mut u8, usize)]) {
    for &(base, len) in segments {
        // SAFETY: the chip gave this memory for the task, which has not ended.
        unsafe { base.write_bytes(World::PATTERN, len) };
    }
}

impl PciBus for World {
    fn first_contiguous_part(
        &mut self,
        addr: u64,
        len: usize,
        _write: bool,
    ) -> Option<(NonNull<u8>, usize)> {
        self.calls += 1;
        assert!(len > 0);
        let start = usize::try_from(addr).ok()?;
        let there = self.memory.get_mut(start..)?;
        // Guest memory may be in pieces.
        let len = len.min(there.len()).min(0x2000 - start % 0x2000);
        (len > 0).then(|| (NonNull::from(&mut there[0]), len))
    }

    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool {
        self.calls += 1;
        assert!(data.len() <= CHUNK);
        let range = World::range(&self.memory, 0, addr, data.len());
        if let Some(range) = range.clone() {
            data.copy_from_slice(&self.memory[range]);
        }
        range.is_some()
    }

    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool {
        self.calls += 1;
        assert!(data.len() <= CHUNK);
        let range = World::range(&self.memory, 0, addr, data.len());
        if let Some(range) = range.clone() {
            self.memory[range].copy_from_slice(data);
        }
        range.is_some()
    }

    fn start_dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, BusFault> {
        self.calls += 1;
        assert!(len <= CHUNK);
        self.ask(addr, PendingRequest::Read(len))
    }

    fn start_dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, BusFault> {
        self.calls += 1;
        assert!(data.len() <= CHUNK);
        self.ask(addr, PendingRequest::Write(data.to_vec()))
    }
}

impl World {
    fn ask(&mut self, addr: u64, what: PendingRequest) -> Result<DmaId, BusFault> {
        if self.faults {
            return Err(BusFault);
        }
        self.last_dma += 1;
        self.asked.push_back((self.last_dma, addr, what));
        Ok(self.last_dma)
    }
}

impl Targets for World {
    fn has_target(&mut self, target: u8) -> bool {
        self.calls += 1;
        assert!(target < 16);
        target % 8 != 7
    }

    fn receive_command(
        &mut self,
        id: TaskSlotId,
        nexus: TargetAndLun,
        _: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        self.calls += 1;
        assert!(nexus.target % 8 != 7 && nexus.lun < 64);
        let len = [6, 10, 10, 6, 16, 12, 10, 10][usize::from(cdb[0] >> 5)];
        assert!(
            cdb.len() == len || matches!(cdb[0] >> 5, 3 | 6 | 7),
            "{cdb:x?}"
        );
        self.take_name(id);
        let blocks = |count: u16| u64::from(count & 0x7f) * BLOCK;
        let phase = match cdb[0] {
            0x03 | 0x12 => PhaseAfterCommand::DataIn(u64::from(cdb[4]).min(36)),
            0x15 => PhaseAfterCommand::DataOut(cdb[4].into()),
            0x28 => PhaseAfterCommand::DataIn(blocks(u16::from_be_bytes([cdb[7], cdb[8]]))),
            0x2a => PhaseAfterCommand::DataOut(blocks(u16::from_be_bytes([cdb[7], cdb[8]]))),
            0x88 => PhaseAfterCommand::DataIn(u64::from_be_bytes(
                cdb[2..10].try_into().expect("16 bytes"),
            )),
            0x8a => PhaseAfterCommand::DataOut(u64::from_be_bytes(
                cdb[2..10].try_into().expect("16 bytes"),
            )),
            _ => PhaseAfterCommand::Status,
        };
        // A target does not announce data that it has not.
        let phase = match phase {
            PhaseAfterCommand::DataIn(0) | PhaseAfterCommand::DataOut(0) => {
                PhaseAfterCommand::Status
            }
            phase => phase,
        };
        let task = Task {
            stage: Stage::Received,
            opcode: cdb[0],
            phase,
            refused: false,
            segments: Vec::new(),
        };
        self.tasks.insert(id, task);
        phase
    }

    fn replace_by_failing_task(&mut self, id: TaskSlotId, _: TargetAndLun, _: CheckConditionCause) {
        self.calls += 1;
        if !self.tasks.contains_key(&id) {
            self.take_name(id);
        }
        let task = self.tasks.entry(id).or_insert(Task {
            stage: Stage::Received,
            opcode: 0xff,
            phase: PhaseAfterCommand::Status,
            refused: true,
            segments: Vec::new(),
        });
        assert_eq!(task.stage, Stage::Received, "it has not run");
        task.refused = true;
    }

    fn run_or_queue_task(
        &mut self,
        id: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome {
        self.calls += 1;
        let task = self.tasks.get_mut(&id).expect("received before");
        assert_eq!(task.stage, Stage::Received, "run once");
        assert!(segments.len() <= MAX_SEGMENTS);
        task.segments = segments
            .iter()
            .map(|piece| (piece.iov_base.cast(), piece.iov_len))
            .collect();
        assert!(
            task.segments
                .iter()
                .all(|(base, len)| !base.is_null() && *len > 0)
        );
        let sum: u64 = task.segments.iter().map(|(_, len)| *len as u64).sum();
        assert_eq!(sum, len);
        if task.refused {
            assert_eq!(len, 0, "nothing is moved");
            task.stage = Stage::Finished;
            return TaskStartOutcome::Finished(2);
        }
        let wanted = match task.phase {
            PhaseAfterCommand::Status => 0,
            PhaseAfterCommand::DataIn(bytes) | PhaseAfterCommand::DataOut(bytes) => bytes,
        };
        assert_eq!(len, wanted, "all that it wanted");
        if task.opcode < 0x20 {
            if let PhaseAfterCommand::DataIn(_) = task.phase {
                fill(&task.segments);
            }
            task.stage = Stage::Finished;
            return TaskStartOutcome::Finished(0);
        }
        task.stage = Stage::Running;
        self.with_disks.push(id);
        assert!(self.with_disks.len() <= MAX_TASKS);
        TaskStartOutcome::Later
    }

    fn abort_task(&mut self, id: TaskSlotId) -> AbortOutcome {
        self.calls += 1;
        let task = self.tasks.get_mut(&id).expect("received, and not over");
        match task.stage {
            Stage::Received => {}
            Stage::Running if self.holds_on => {
                task.stage = Stage::HeldOn;
                return AbortOutcome::Later;
            }
            Stage::Running => self.with_disks.retain(|running| *running != id),
            stage => panic!("{stage:?}"),
        }
        self.tasks.remove(&id);
        AbortOutcome::Done
    }

    fn release_finished_task(&mut self, id: TaskSlotId, _: bool) {
        self.calls += 1;
        let task = self.tasks.remove(&id).expect("it has finished");
        assert_eq!(task.stage, Stage::Finished);
    }

    fn reset_units(&mut self, what: ResetScope) {
        self.calls += 1;
        let is_there = match what {
            ResetScope::Bus => {
                !self.tasks.is_empty()
                    && !self.tasks.values().all(|task| task.stage == Stage::HeldOn)
            }
            _ => false,
        };
        assert!(!is_there, "tasks are aborted before");
    }
}
