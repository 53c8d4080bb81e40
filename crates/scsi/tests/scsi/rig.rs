//! A unit with a disk in memory, and an initiator.

use std::sync::{Arc, Mutex};

use block::{DiscardLimits, DiskCall, Geometry, Op, Request};
use engine::Errno;
use libc::iovec;
use scsi::{
    AdapterStep, DataPhase, NexusNumber, NexusPorts, ReservationStore, Resume, Status, Target,
    TargetView, Task, TransportId, Unit, UnitIdentity, UnitOptions, Waker,
};
use test_support::disk::{allocations, carry_out};

pub const BLOCK: usize = 512;

/// Blocks of the disk.
pub const BLOCKS: u64 = 4096;

pub const LUN: u16 = 3;

#[derive(Default)]
pub struct Woken(pub Mutex<Vec<u64>>);

impl Resume for Woken {
    fn schedule_resume(&self, token: u64) {
        self.0.lock().unwrap().push(token);
    }
}

/// A store of reservations in memory.
#[derive(Debug, Default)]
pub struct Kept {
    pub texts: Mutex<Vec<String>>,
    /// The error of the next saves.
    pub error: Mutex<Option<Errno>>,
}

impl ReservationStore for Kept {
    fn save(&self, text: &str) -> Result<(), Errno> {
        self.error.lock().unwrap().map_or(Ok(()), Err)?;
        self.texts.lock().unwrap().push(text.to_owned());
        Ok(())
    }
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub phase: DataPhase,
    pub status: Status,
    pub sense: Vec<u8>,
    pub data: Vec<u8>,
    pub transferred: u64,
}

impl Reply {
    /// Sense key and code, in either format.
    pub fn sense_code(&self) -> (u8, u16) {
        let (key, code) = match self.sense.first() {
            None => return (0, 0),
            Some(0x72) => (1, 2),
            Some(_) => (2, 12),
        };
        let code = [self.sense[code], self.sense[code + 1]];
        (self.sense[key], u16::from_be_bytes(code))
    }
}

/// A command at work. The task has the addresses of its list and memory.
pub struct Running {
    phase: DataPhase,
    pub task: Task,
    pub step: AdapterStep,
    memory: Vec<u8>,
    list: Vec<iovec>,
}

impl Running {
    pub fn waits(&self) -> bool {
        matches!(self.step, AdapterStep::Wait)
    }

    /// Its turn has come.
    pub fn resume_next(&mut self) {
        self.step = self.task.on_resumed().expect("it is its turn");
    }
}

pub struct Rig {
    pub unit: Arc<Unit>,
    pub target: Arc<Target>,
    pub view: TargetView,
    pub woken: Arc<Woken>,
    pub disk: Vec<u8>,
    /// What the node was asked for: op, FUA, offset, length.
    pub asked: Vec<(Op, bool, u64, u64)>,
    /// The node fails from now on.
    pub error: Option<Errno>,
    /// What became of reservations that are to be kept, if the unit was made with it.
    pub kept: Arc<Kept>,
    /// Steps for adapters.
    pub settled: Vec<Vec<NexusNumber>>,
    pub nexus: NexusNumber,
    /// The most bytes of one of the initiator's segments.
    pub segment: usize,
    /// What discarded blocks read: nothing is promised.
    pub discarded: u8,
    pub unencoded_sense: Option<scsi::Sense>,
}

pub fn geometry() -> Geometry {
    Geometry {
        size: BLOCKS * BLOCK as u64,
        logical_block_size: 512,
        physical_block_size: 4096,
        min_io_size: 4096,
        opt_io_size: 65_536,
        discard: DiscardLimits {
            granularity: 4096,
            max_bytes: 1 << 20,
        },
    }
}

pub fn options() -> UnitOptions {
    UnitOptions {
        identity: UnitIdentity {
            serial: "S123".to_owned(),
            naa: Some(0x5000_0000_0000_0001),
            ..UnitIdentity::default()
        },
        ..UnitOptions::default()
    }
}

pub fn ports(nexus: NexusNumber) -> NexusPorts {
    NexusPorts {
        initiator: TransportId::Parallel { address: nexus.0 },
        target: 1,
    }
}

impl Rig {
    pub fn new(options: UnitOptions) -> Self {
        Rig::of(options, geometry())
    }

    pub fn of(options: UnitOptions, geometry: Geometry) -> Self {
        let unit = Arc::new(Unit::new(options, geometry).unwrap());
        let target = Target::new();
        target
            .add_unit_and_raise_attentions(LUN, unit.clone())
            .unwrap();
        let mut rig = Rig {
            unit,
            view: TargetView::new(target.clone()),
            target,
            woken: Arc::default(),
            disk: vec![0; geometry.size as usize],
            asked: Vec::new(),
            error: None,
            kept: Arc::default(),
            settled: Vec::new(),
            nexus: NexusNumber(0),
            segment: 700,
            discarded: 0xdd,
            unencoded_sense: None,
        };
        for nexus in [NexusNumber(0), NexusNumber(1), NexusNumber(2)] {
            rig.target
                .attach_initiator_and_start_units(nexus, &ports(nexus));
            assert_eq!(rig.by(nexus, &[0; 6]).sense_code(), (6, 0x2900));
        }
        rig.nexus = NexusNumber(0);
        rig
    }

    pub fn plain() -> Self {
        Rig::new(options())
    }

    /// Without thin provisioning.
    pub fn thick() -> Self {
        Rig::new(UnitOptions {
            thin: false,
            ..options()
        })
    }

    /// A rig with a store of reservations.
    pub fn keeping() -> Self {
        let kept = Arc::new(Kept::default());
        let options = UnitOptions {
            reservation_store: Some(kept.clone()),
            ..options()
        };
        Rig {
            kept,
            ..Rig::new(options)
        }
    }

    pub fn task(&self, token: u64) -> Task {
        Task::new(Waker {
            resume: self.woken.clone(),
            token,
        })
    }

    /// What a node does.
    pub fn node(&mut self, request: Request) -> Result<(), Errno> {
        self.asked
            .push((request.op, request.fua, request.offset, request.len));
        if let Some(error) = self.error {
            return Err(error);
        }
        let list: &mut [iovec] = if request.iov_count == 0 {
            &mut []
        } else {
            // SAFETY: requests bring valid lists.
            unsafe { std::slice::from_raw_parts_mut(request.iov, request.iov_count as usize) }
        };
        let data = matches!(request.op, Op::Read | Op::Write);
        assert!(data || list.is_empty(), "segments of {request:?}");
        // SAFETY: it brings a valid list, and the disk's memory is its own.
        unsafe { carry_out(&mut self.disk, &request) };
        if request.op == Op::Discard {
            self.disk[request.offset as usize..][..request.len as usize].fill(self.discarded);
        }
        // IoContext may do so.
        for segment in list {
            segment.iov_len = 0;
            segment.iov_base = std::ptr::null_mut();
        }
        Ok(())
    }

    /// Cuts memory into segments.
    pub fn segments(&self, memory: &mut [u8]) -> Vec<iovec> {
        memory
            .chunks_mut(self.segment)
            .map(|piece| iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: piece.len(),
            })
            .collect()
    }

    /// What a worker does.
    pub fn carry_out(&self, call: DiskCall) -> Result<(), Errno> {
        call.run_with_allocations(|offset, len, most| match self.error {
            Some(error) => Err(error),
            None => {
                // Of so much at a time: more would be slow.
                let len = len.min(BLOCKS * BLOCK as u64);
                let bytes = &self.disk[offset as usize..][..len as usize];
                Ok(allocations(bytes, most))
            }
        })
    }

    /// Carries a step out; the next one.
    pub fn do_step(&mut self, task: &mut Task, step: AdapterStep) -> Option<AdapterStep> {
        Some(match step {
            AdapterStep::Finished | AdapterStep::Wait => return None,
            AdapterStep::Submit(request) => {
                let result = self.node(request);
                task.on_step_completed(result)
            }
            AdapterStep::Call => {
                let call = task.requested_disk_call().unwrap();
                task.on_step_completed(self.carry_out(call))
            }
            AdapterStep::SettlePreempted => {
                self.settled.push(task.preempted_nexuses().to_vec());
                task.on_step_completed(Ok(()))
            }
        })
    }

    /// Starts a command of one of the initiators in a task, with memory for its data: the node has not done its first request yet.
    pub fn start(
        &mut self,
        task: Task,
        (nexus, lun): (NexusNumber, u16),
        cdb: &[u8],
        memory: impl FnOnce(DataPhase) -> Vec<u8>,
    ) -> Running {
        let mut running = Running {
            phase: DataPhase::Status,
            task,
            step: AdapterStep::Finished,
            memory: Vec::new(),
            list: Vec::new(),
        };
        running.phase = running.task.receive(&mut self.view, lun, nexus, cdb);
        running.memory = memory(running.phase);
        running.list = self.segments(&mut running.memory);
        let (list, len) = (&mut running.list, running.memory.len());
        // SAFETY: list and memory stay as long as the task.
        running.step = unsafe {
            running
                .task
                .run(list.as_mut_ptr(), list.len() as u32, len as u64)
        };
        running
    }

    /// The same in a new task.
    pub fn run(&mut self, token: u64, nexus: NexusNumber, cdb: &[u8], memory: Vec<u8>) -> Running {
        self.start(self.task(token), (nexus, LUN), cdb, |_| memory)
    }

    /// Carries one step out.
    pub fn step(&mut self, running: &mut Running) {
        let step = std::mem::replace(&mut running.step, AdapterStep::Finished);
        running.step = self.do_step(&mut running.task, step).unwrap();
    }

    pub fn finish(&mut self, mut running: Running) -> Status {
        self.run_to_the_end(&mut running);
        running.task.status()
    }

    fn run_to_the_end(&mut self, running: &mut Running) {
        while !matches!(running.step, AdapterStep::Finished) {
            self.step(running);
        }
    }

    pub fn take_woken(&self) -> Vec<u64> {
        std::mem::take(&mut *self.woken.0.lock().unwrap())
    }

    /// A command with data from the initiator, and room for data.
    pub fn exchange(&mut self, lun: u16, cdb: &[u8], out: &[u8], room: usize) -> Reply {
        self.exchange_in(self.task(0), lun, cdb, out, room).0
    }

    /// The same in a task of the caller's.
    pub fn exchange_in(
        &mut self,
        mut task: Task,
        lun: u16,
        cdb: &[u8],
        out: &[u8],
        room: usize,
    ) -> (Reply, Task) {
        if let Some(sense) = self.unencoded_sense.take() {
            task.set_previous_sense(sense);
        }
        let place = (self.nexus, lun);
        let mut running = self.start(task, place, cdb, |phase| match phase {
            DataPhase::DataIn(_) => vec![0xee; room],
            _ => out.to_vec(),
        });
        self.run_to_the_end(&mut running);
        let Running {
            phase,
            task,
            memory: mut data,
            ..
        } = running;
        let (status, transferred) = (task.status(), task.transferred_bytes());
        let most = match phase {
            DataPhase::DataIn(bytes) => {
                let mut rest = data[transferred as usize..].iter();
                assert!(
                    rest.all(|byte| *byte == 0xee) || status != Status::Good,
                    "written beyond what was transferred"
                );
                data.truncate(transferred as usize);
                bytes.min(room as u64)
            }
            DataPhase::DataOut(bytes) => bytes.min(out.len() as u64),
            DataPhase::Status => 0,
        };
        if !matches!(phase, DataPhase::DataIn(_)) {
            data.clear();
        }
        assert!(transferred <= most, "{phase:?}: {transferred} bytes");
        let sense = task.sense().to_vec();
        let reply = Reply {
            phase,
            status,
            sense,
            data,
            transferred,
        };
        (reply, task)
    }

    pub fn send(&mut self, cdb: &[u8], out: &[u8]) -> Reply {
        self.exchange(LUN, cdb, out, 1 << 16)
    }

    /// A command without data from the initiator.
    pub fn ask(&mut self, cdb: &[u8]) -> Reply {
        self.exchange(LUN, cdb, &[], 1 << 16)
    }

    /// The same by another initiator.
    pub fn by(&mut self, nexus: NexusNumber, cdb: &[u8]) -> Reply {
        let before = std::mem::replace(&mut self.nexus, nexus);
        let reply = self.ask(cdb);
        self.nexus = before;
        reply
    }

    /// The data of a command that must be carried out.
    #[track_caller]
    pub fn data(&mut self, cdb: &[u8]) -> Vec<u8> {
        let reply = self.ask(cdb);
        assert_eq!(reply.status, Status::Good, "{cdb:x?}: {reply:x?}");
        reply.data
    }

    #[track_caller]
    pub fn good(&mut self, cdb: &[u8], out: &[u8]) {
        let reply = self.send(cdb, out);
        assert_eq!(reply.status, Status::Good, "{cdb:x?}: {reply:x?}");
        assert_eq!(reply.transferred, out.len() as u64);
    }

    /// A command that must be refused so.
    #[track_caller]
    pub fn refused(&mut self, cdb: &[u8], out: &[u8], key: u8, code: u16) {
        let reply = self.send(cdb, out);
        assert_eq!(
            (reply.status, reply.sense_code()),
            (Status::CheckCondition, (key, code)),
            "{cdb:x?}"
        );
    }
}

/// READ(10) and its like.
pub fn cdb10(opcode: u8, flags: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (lba, blocks) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [
        opcode, flags, lba[0], lba[1], lba[2], lba[3], 0, blocks[0], blocks[1], 0,
    ]
}

/// READ(16) and its like.
pub fn cdb16(opcode: u8, flags: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[1] = flags;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Bytes that are all different from their neighbours' blocks.
pub fn pattern(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK)
        .map(|at| (at / BLOCK) as u8 ^ at as u8 ^ seed)
        .collect()
}
