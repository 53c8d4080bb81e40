//! Guest memory, some of which is not shared, and fake targets.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::ptr::NonNull;

use lsi53c895a::chip::{
    AbortOutcome, BusFault, CheckConditionCause, DmaId, MAX_SEGMENTS, MAX_TASKS, PciBus,
    PhaseAfterCommand, ResetScope, TagAttribute, TargetAndLun, Targets, TaskSlotId,
    TaskStartOutcome,
};

use crate::allocations;

/// Guest memory that is not shared.
pub const FAR: u32 = 0x4000_0000;
/// Its bytes.
pub const FAR_BYTES: usize = 1 << 16;

/// A block of the disk.
pub const BLOCK: usize = 512;

/// A byte of memory, see [`World::interrupted`].
pub const WATCHED: u32 = 0x3800;

/// A status.
pub const GOOD: u8 = 0;
/// A status.
pub const CHECK_CONDITION: u8 = 2;

/// The largest piece in which the chip moves memory.
const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Received,
    Running,
    /// Aborted, and its memory still in use.
    HeldOn,
    Finished,
    Over,
}

/// A task as the fake targets see it.
pub struct FakeTask {
    /// The unit.
    pub nexus: TargetAndLun,
    /// From its tag.
    pub attribute: TagAttribute,
    /// The command.
    pub cdb: Vec<u8>,
    /// Its memory.
    pub segments: Vec<(*mut u8, usize)>,
    /// The target must fail it.
    pub refused: Option<CheckConditionCause>,
    phase: PhaseAfterCommand,
    pub(super) stage: Stage,
}

impl FakeTask {
    /// Bytes of its memory.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        self.segments.iter().map(|(_, len)| len).sum()
    }
}

/// An access to memory that is not shared.
pub enum PendingAccess {
    /// Of so many bytes.
    Read(usize),
    /// Of these bytes.
    Write(Vec<u8>),
}

/// Guest memory, and the targets on the bus.
#[derive(Default)]
pub struct World {
    /// Mapped guest memory, from address 0.
    pub memory: Box<[u8]>,
    /// A piece of it ends at each multiple of this.
    pub contiguous_bytes: usize,
    /// Memory from [`FAR`] on.
    pub far: Box<[u8]>,
    /// Accesses to it that were not answered yet.
    pub asked: VecDeque<(DmaId, u64, PendingAccess)>,
    /// They are refused.
    pub faults: bool,
    last_dma: DmaId,
    /// What READ(10) and WRITE(10) of any unit move; other commands, and those beyond its end, read [`letters`].
    pub disk: Vec<u8>,
    /// Targets that there are.
    pub present: Vec<u8>,
    /// All tasks so far.
    pub tasks: BTreeMap<TaskSlotId, FakeTask>,
    /// Those that the disks have, in the order in which they came.
    pub running: Vec<TaskSlotId>,
    /// The disks hold on to memory of aborted tasks for a while.
    pub holds_on: bool,
    /// Bytes of each task that was run.
    pub runs: Vec<u64>,
    /// Tasks that were aborted.
    pub aborts: usize,
    /// Tasks that were released, and whether their status was reported.
    pub released: Vec<(TaskSlotId, bool)>,
    /// Resets so far.
    pub resets: Vec<ResetScope>,
    /// What stood at [`WATCHED`] each time that the pin went up within a run.
    pub interrupted: Vec<u8>,
    /// Allocations of the fake targets, see [`allocations`].
    pub own_allocations: u64,
    /// The last generation of each slot.
    generations: BTreeMap<u16, u32>,
    /// Tasks that were neither aborted nor released.
    live: usize,
    /// What the run has asked for.
    pub(super) calls: usize,
}

/// What commands read that have no data of a disk.
pub fn letters() -> impl Iterator<Item = u8> {
    (b'a'..=b'z').cycle()
}

impl World {
    /// With so much mapped memory, no disk, and targets 0 to 15 except 7, the chip itself.
    #[must_use]
    pub fn new(memory: usize) -> Self {
        World {
            memory: vec![0; memory].into(),
            contiguous_bytes: memory,
            far: vec![0; FAR_BYTES].into(),
            present: (0..16).filter(|id| *id != 7).collect(),
            ..World::default()
        }
    }

    /// A task.
    #[must_use]
    pub fn task(&self, id: TaskSlotId) -> &FakeTask {
        &self.tasks[&id]
    }

    pub(super) fn range(bytes: &[u8], addr: u64, len: usize) -> Option<Range<usize>> {
        let start = usize::try_from(addr).ok()?;
        let end = start.checked_add(len)?;
        (end <= bytes.len()).then_some(start..end)
    }

    fn ask(&mut self, addr: u64, access: PendingAccess) -> Result<DmaId, BusFault> {
        self.calls += 1;
        if self.faults {
            return Err(BusFault);
        }
        self.last_dma += 1;
        self.asked.push_back((self.last_dma, addr, access));
        Ok(self.last_dma)
    }

    fn use_name(&mut self, id: TaskSlotId) {
        self.live += 1;
        let last = self.generations.insert(id.index, id.generation);
        assert!(last < Some(id.generation), "a name is used once");
    }

    /// Does what has allocations of its own.
    fn do_own<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        self.calls += 1;
        let before = allocations::of_this_thread();
        let result = work(self);
        self.own_allocations += allocations::of_this_thread() - before;
        result
    }

    /// Moves the data of a task between the disk and the guest.
    pub(super) fn transfer(&mut self, id: TaskSlotId) {
        let task = &self.tasks[&id];
        let mut blocks = match task.cdb[..] {
            [0x28 | 0x2a, _, a, b, c, d, ..] => {
                let at = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap() * BLOCK;
                self.disk.get_mut(at..at + task.data_bytes())
            }
            _ => None,
        };
        let (mut at, mut letters) = (0, letters());
        for &(base, len) in &task.segments {
            // SAFETY: the chip gave this memory for the task, which is not over; nothing else accesses it meanwhile.
            let guest = unsafe { std::slice::from_raw_parts_mut(base, len) };
            match (task.phase, &mut blocks) {
                (PhaseAfterCommand::DataIn(_), Some(blocks)) => {
                    guest.copy_from_slice(&blocks[at..][..len]);
                }
                (PhaseAfterCommand::DataIn(_), None) => {
                    guest.fill_with(|| letters.next().unwrap());
                }
                (_, Some(blocks)) => blocks[at..][..len].copy_from_slice(guest),
                _ => {}
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
        self.calls += 1;
        assert!(len > 0);
        let start = usize::try_from(addr).ok()?;
        let there = self
            .memory
            .get_mut(start..)
            .filter(|rest| !rest.is_empty())?;
        let piece = self.contiguous_bytes - start % self.contiguous_bytes;
        Some((
            NonNull::from(&mut there[0]),
            len.min(there.len()).min(piece),
        ))
    }

    fn read_if_mapped(&mut self, addr: u64, data: &mut [u8]) -> bool {
        self.calls += 1;
        assert!(data.len() <= CHUNK);
        let range = World::range(&self.memory, addr, data.len());
        if let Some(range) = range.clone() {
            data.copy_from_slice(&self.memory[range]);
        }
        range.is_some()
    }

    fn write_if_mapped(&mut self, addr: u64, data: &[u8]) -> bool {
        self.calls += 1;
        assert!(data.len() <= CHUNK);
        let range = World::range(&self.memory, addr, data.len());
        if let Some(range) = range.clone() {
            self.memory[range].copy_from_slice(data);
        }
        range.is_some()
    }

    fn start_dma_read(&mut self, addr: u64, len: usize) -> Result<DmaId, BusFault> {
        assert!(len <= CHUNK);
        self.ask(addr, PendingAccess::Read(len))
    }

    fn start_dma_write(&mut self, addr: u64, data: &[u8]) -> Result<DmaId, BusFault> {
        assert!(data.len() <= CHUNK);
        self.ask(addr, PendingAccess::Write(data.to_vec()))
    }

    fn on_interrupt_asserted(&mut self) {
        self.interrupted.push(self.memory[WATCHED as usize]);
    }
}

impl Targets for World {
    fn has_target(&mut self, target: u8) -> bool {
        self.calls += 1;
        assert!(target < 16);
        self.present.contains(&target)
    }

    fn receive_command(
        &mut self,
        id: TaskSlotId,
        nexus: TargetAndLun,
        attribute: TagAttribute,
        cdb: &[u8],
    ) -> PhaseAfterCommand {
        assert!(self.present.contains(&nexus.target) && nexus.lun < 64);
        let group = cdb[0] >> 5;
        let len = [6, 10, 10, 6, 16, 12, 10, 10][usize::from(group)];
        assert!(cdb.len() == len || matches!(group, 3 | 6 | 7), "{cdb:x?}");
        let blocks = || u64::from(u16::from_be_bytes([cdb[7], cdb[8]])) * BLOCK as u64;
        let large = || u64::from_be_bytes(cdb[2..10].try_into().unwrap());
        let phase = match cdb[0] {
            0x03 | 0x12 => PhaseAfterCommand::DataIn(u64::from(cdb[4]).min(36)),
            0x15 => PhaseAfterCommand::DataOut(cdb[4].into()),
            0x28 => PhaseAfterCommand::DataIn(blocks()),
            0x2a => PhaseAfterCommand::DataOut(blocks()),
            0x88 => PhaseAfterCommand::DataIn(large()),
            0x8a => PhaseAfterCommand::DataOut(large()),
            _ => PhaseAfterCommand::Status,
        };
        // A target does not announce data that it has not.
        let phase = match phase {
            PhaseAfterCommand::DataIn(0) | PhaseAfterCommand::DataOut(0) => {
                PhaseAfterCommand::Status
            }
            phase => phase,
        };
        self.do_own(|world| {
            world.use_name(id);
            let task = FakeTask {
                nexus,
                attribute,
                cdb: cdb.to_vec(),
                segments: Vec::new(),
                refused: None,
                phase,
                stage: Stage::Received,
            };
            world.tasks.insert(id, task);
        });
        phase
    }

    fn replace_by_failing_task(
        &mut self,
        id: TaskSlotId,
        nexus: TargetAndLun,
        refusal: CheckConditionCause,
    ) {
        self.calls += 1;
        if !self.tasks.contains_key(&id) {
            self.use_name(id);
        }
        let task = self.tasks.entry(id).or_insert(FakeTask {
            nexus,
            attribute: TagAttribute::Untagged,
            cdb: vec![0xff],
            segments: Vec::new(),
            refused: None,
            phase: PhaseAfterCommand::Status,
            stage: Stage::Received,
        });
        assert_eq!(task.stage, Stage::Received, "it has not run");
        task.refused = Some(refusal);
    }

    fn run_or_queue_task(
        &mut self,
        id: TaskSlotId,
        segments: &mut [libc::iovec],
        len: u64,
    ) -> TaskStartOutcome {
        self.do_own(|world| {
            world.runs.push(len);
            let task = world.tasks.get_mut(&id).expect("received before");
            assert_eq!(task.stage, Stage::Received, "run once");
            assert!(segments.len() <= MAX_SEGMENTS);
            let pieces = segments.iter();
            task.segments = pieces
                .map(|piece| (piece.iov_base.cast(), piece.iov_len))
                .collect();
            let is_memory = |(base, len): &(*mut u8, usize)| !base.is_null() && *len > 0;
            assert!(task.segments.iter().all(is_memory));
            assert_eq!(task.data_bytes() as u64, len);
            if task.refused.is_some() {
                assert_eq!(len, 0, "nothing is moved");
                task.stage = Stage::Finished;
                return TaskStartOutcome::Finished(CHECK_CONDITION);
            }
            let wanted = match task.phase {
                PhaseAfterCommand::Status => 0,
                PhaseAfterCommand::DataIn(bytes) | PhaseAfterCommand::DataOut(bytes) => bytes,
            };
            assert_eq!(len, wanted, "all that it wanted");
            if task.cdb[0] < 0x20 {
                task.stage = Stage::Finished;
                world.transfer(id);
                return TaskStartOutcome::Finished(GOOD);
            }
            task.stage = Stage::Running;
            world.running.push(id);
            assert!(world.running.len() <= MAX_TASKS);
            TaskStartOutcome::Later
        })
    }

    fn abort_task(&mut self, id: TaskSlotId) -> AbortOutcome {
        self.calls += 1;
        self.aborts += 1;
        self.live -= 1;
        let task = self.tasks.get_mut(&id).expect("received before");
        match task.stage {
            Stage::Received => {}
            Stage::Running if self.holds_on => {
                task.stage = Stage::HeldOn;
                return AbortOutcome::Later;
            }
            Stage::Running => self.running.retain(|running| *running != id),
            stage => panic!("{stage:?}"),
        }
        task.stage = Stage::Over;
        AbortOutcome::Done
    }

    fn release_finished_task(&mut self, id: TaskSlotId, reported: bool) {
        self.do_own(|world| {
            let task = world.tasks.get_mut(&id).expect("received before");
            assert_eq!(task.stage, Stage::Finished);
            task.stage = Stage::Over;
            world.live -= 1;
            world.released.push((id, reported));
        });
    }

    fn reset_units(&mut self, what: ResetScope) {
        self.calls += 1;
        assert!(
            what != ResetScope::Bus || self.live == 0,
            "tasks are aborted before"
        );
        self.resets.push(what);
    }
}
