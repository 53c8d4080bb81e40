//! SCSI disks: any command of any initiator with any data, interleaved, cancelled, and answered in any order.
//!
//! Requests are for blocks that are there; only commands that write do so, and not on a unit that may not be written, nor when they
//! are refused; the initiator gets no byte more than was announced; a command that ends in CHECK CONDITION says why; what is
//! saved of reservations can be restored; and after a reset the unit gets ready.

mod cdb;
mod slot;

use std::sync::{Arc, Mutex};

use block::Op;
use engine::Errno;
use libc::iovec;
use scsi::{
    AdapterStep, BusOrUnitReset, DataPhase, NexusNumber, NexusPorts, Resume, Status, Target,
    TargetView, Task, TransportId, Unit, UnitOptions, Waker,
};

use crate::disk::{DISK, allocations, carry_out, check, geometry, keeping};
use crate::input::Input;
pub(crate) use cdb::cdb;
use slot::{Command, Slot, Waits};

const EVENTS: usize = 200;

/// Numbers of the units.
const LUNS: [u16; 2] = [0, 300];

const NEXUSES: u16 = 3;

const TASKS: usize = 6;

/// The most that an initiator has for data.
const BUFFER: usize = 16 << 10;

/// What the initiator's memory holds where nothing was written.
const UNTOUCHED: u8 = 0xa5;

#[derive(Default)]
struct Woken(Mutex<Vec<u64>>);

impl Resume for Woken {
    fn schedule_resume(&self, token: u64) {
        self.0.lock().expect("one thread").push(token);
    }
}

struct Rig {
    target: Arc<Target>,
    views: Vec<TargetView>,
    units: Vec<(Arc<Unit>, bool)>,
    contents: Vec<Vec<u8>>,
    slots: Vec<Slot>,
    woken: Arc<Woken>,
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut rig = Rig::new(input.byte());
    input.events(EVENTS, |input| rig.event(input));
    rig.recovers();
}

fn ports(nexus: u16) -> NexusPorts {
    NexusPorts {
        target: 1,
        initiator: match nexus {
            0 => TransportId::Parallel { address: 7 },
            1 => TransportId::Sas(0x5000_0000_0000_0001),
            _ => TransportId::Iscsi {
                name: "iqn.2026-11.fuzz".to_owned(),
            },
        },
    }
}

impl Rig {
    fn new(flags: u8) -> Self {
        let options = UnitOptions {
            logical_block_size: if flags & 1 != 0 { 4096 } else { 512 },
            read_only: flags & 2 != 0,
            write_through: flags & 4 != 0,
            thin: flags & 8 == 0,
            reservation_store: keeping().reservation_store.filter(|_| flags & 16 != 0),
            ..UnitOptions::default()
        };
        let units = [(options, flags & 2 != 0), (keeping(), false)];
        let units: Vec<_> = units
            .map(|(options, read_only)| {
                (
                    Arc::new(Unit::new(options, geometry()).expect("options")),
                    read_only,
                )
            })
            .into();
        let target = Target::new();
        for (lun, (unit, _)) in LUNS.iter().zip(&units) {
            target
                .add_unit_and_raise_attentions(*lun, unit.clone())
                .expect("the address is free");
        }
        for nexus in 0..NEXUSES {
            target.attach_initiator_and_start_units(NexusNumber(nexus), &ports(nexus));
        }
        let woken = Arc::new(Woken::default());
        let slot = |token| Slot {
            task: Task::new(Waker {
                resume: woken.clone(),
                token,
            }),
            waits: Waits::Idle,
            command: Command::default(),
            buffer: vec![UNTOUCHED; BUFFER],
            list: Vec::new(),
        };
        Rig {
            slots: (0..TASKS as u64).map(slot).collect(),
            views: (0..NEXUSES)
                .map(|_| TargetView::new(target.clone()))
                .collect(),
            contents: vec![vec![0; DISK]; LUNS.len()],
            target,
            units,
            woken,
        }
    }

    fn event(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=7 => {
                let idle = |slot: &Slot| matches!(slot.waits, Waits::Idle);
                if let Some(at) = self.slots.iter().position(idle) {
                    self.command(at, input);
                }
            }
            8..=11 => {
                let (which, how) = (usize::from(input.byte()), input.byte());
                let busy = (0..TASKS).filter(|at| self.slots[*at].is_at_a_disk());
                let busy: Vec<usize> = busy.collect();
                if let Some(at) = which.checked_rem(busy.len()) {
                    self.complete(busy[at], how);
                }
            }
            12 => {
                let slot = &mut self.slots[input.below(TASKS)];
                if !matches!(slot.waits, Waits::Idle) {
                    slot.command.cancelled = true;
                    let under_way = slot.task.cancel();
                    assert_eq!(under_way, slot.is_at_a_disk());
                    if !under_way {
                        slot.waits = Waits::Idle;
                    }
                }
            }
            13 => self.wake(),
            14 => {
                let nexus = NexusNumber(input.u16() % NEXUSES);
                let (unit, read_only) = &mut self.units[input.below(2)];
                match input.below(9) {
                    0 => _ = unit.resize((input.below(17) << 12) as u64),
                    1 => {
                        *read_only = input.flag();
                        unit.set_read_only(*read_only);
                    }
                    2 => unit.reset(BusOrUnitReset::Unit),
                    3 => unit.reset(BusOrUnitReset::Bus),
                    4 => unit.on_nexus_lost(nexus),
                    5 => unit.raise_commands_cleared_attention(nexus),
                    6 => self.target.detach_initiator(nexus),
                    7 => self
                        .target
                        .attach_initiator_and_start_units(nexus, &ports(nexus.0)),
                    _ => _ = unit.resize(DISK as u64),
                }
            }
            _ => {
                let at = input.below(2);
                if self
                    .target
                    .remove_unit_and_raise_attentions(LUNS[at])
                    .is_none()
                {
                    self.target
                        .add_unit_and_raise_attentions(LUNS[at], self.units[at].0.clone())
                        .expect("the address is free");
                    for nexus in 0..NEXUSES {
                        self.target
                            .attach_initiator_and_start_units(NexusNumber(nexus), &ports(nexus));
                    }
                }
            }
        }
    }

    fn command(&mut self, at: usize, input: &mut Input) {
        let cdb = cdb(input);
        let nexus = input.u16() % NEXUSES;
        let lun = match input.below(8) {
            7 => input.u16(),
            6 => LUNS[1],
            _ => LUNS[input.below(2)],
        };
        let slot = &mut self.slots[at];
        let mut units = self.units.iter().zip(LUNS);
        let read_only = units.any(|((_, read_only), number)| *read_only && number == lun);
        let view = &mut self.views[usize::from(nexus)];
        let phase = slot.task.receive(view, lun, NexusNumber(nexus), &cdb);
        let wanted = match phase {
            DataPhase::Status => 0,
            DataPhase::DataIn(bytes) | DataPhase::DataOut(bytes) => {
                usize::try_from(bytes).expect("64 bits")
            }
        };
        let given = match input.below(8) {
            0 => usize::from(input.u16()) % BUFFER,
            1 => wanted.saturating_add(input.below(600)),
            _ => wanted,
        }
        .min(BUFFER);
        slot.command = Command {
            lun,
            opcode: cdb[0],
            phase: Some(phase),
            given: given as u64,
            read_only,
            ..Command::default()
        };
        slot.buffer.fill(UNTOUCHED);
        if let DataPhase::DataOut(_) = phase {
            slot.buffer[..given].fill(0);
            let bytes = input.bytes(given.min(80));
            slot.buffer[..bytes.len()].copy_from_slice(bytes);
        }
        // In up to four pieces.
        slot.list.clear();
        let mut begin = 0;
        for piece in 0..4 {
            let left = given - begin;
            let len = match piece {
                3 => left,
                _ => left.min(usize::from(input.u16())),
            };
            if len > 0 {
                slot.list.push(iovec {
                    iov_base: slot.buffer[begin..].as_mut_ptr().cast(),
                    iov_len: len,
                });
                begin += len;
            }
        }
        let count = u32::try_from(slot.list.len()).expect("four");
        // SAFETY: the slot keeps list and buffer until the task is over.
        let step = unsafe { slot.task.run(slot.list.as_mut_ptr(), count, given as u64) };
        self.step(at, step);
    }

    fn step(&mut self, at: usize, mut step: AdapterStep) {
        let slot = &mut self.slots[at];
        loop {
            step = match step {
                AdapterStep::Submit(request) => {
                    check(&request);
                    if !matches!(request.op, Op::Read | Op::Flush) {
                        let Command {
                            opcode, read_only, ..
                        } = slot.command;
                        let may_write = cdb::WRITERS.contains(&opcode) && !read_only;
                        assert!(may_write, "{opcode:#x} {request:?}");
                        slot.command.writes += 1;
                    }
                    slot.waits = Waits::Disk(request);
                    return;
                }
                AdapterStep::Wait => {
                    slot.waits = Waits::Turn;
                    return;
                }
                AdapterStep::Call => {
                    let call = slot.task.requested_disk_call();
                    slot.waits = Waits::Call(call.expect("something to do"));
                    return;
                }
                AdapterStep::SettlePreempted => slot.task.on_step_completed(Ok(())),
                AdapterStep::Finished => {
                    slot.waits = Waits::Idle;
                    return slot.check_end();
                }
            }
        }
    }

    fn complete(&mut self, at: usize, how: u8) {
        let slot = &mut self.slots[at];
        let waits = std::mem::replace(&mut slot.waits, Waits::Idle);
        let result = match (how, waits) {
            (_, Waits::Idle | Waits::Turn) => return,
            (0..=239, Waits::Call(call)) => call.run_with_allocations(allocations),
            (0..=239, Waits::Disk(request)) => {
                let disk = LUNS
                    .iter()
                    .position(|lun| *lun == slot.command.lun)
                    .expect("it has a disk");
                carry_out(&mut self.contents[disk], &request);
                Ok(())
            }
            _ => {
                slot.command.failures += 1;
                let errors = [Errno::IO, Errno::NOSPC, Errno::BADE, Errno::NOMEM];
                Err(errors[usize::from(how % 4)])
            }
        };
        let step = slot.task.on_step_completed(result);
        self.step(at, step);
    }

    /// Tasks whose turn it is go on.
    fn wake(&mut self) {
        let woken = std::mem::take(&mut *self.woken.0.lock().expect("one thread"));
        for token in woken {
            let at = usize::try_from(token).expect("small");
            if matches!(self.slots[at].waits, Waits::Turn)
                && let Some(step) = self.slots[at].task.on_resumed()
            {
                self.step(at, step);
            }
        }
    }

    /// All comes to an end, and then a unit gets ready after a reset.
    fn recovers(&mut self) {
        for _ in 0..10_000 {
            self.wake();
            match self.slots.iter().position(Slot::is_at_a_disk) {
                Some(at) => self.complete(at, 0),
                None => break,
            }
        }
        let mut slots = self.slots.iter();
        let all_idle = slots.all(|slot| matches!(slot.waits, Waits::Idle));
        assert!(all_idle, "no command waits for ever");
        for (at, (unit, _)) in self.units.iter().enumerate() {
            unit.resize(DISK as u64);
            self.target.remove_unit_and_raise_attentions(LUNS[at]);
            let _ = self
                .target
                .add_unit_and_raise_attentions(LUNS[at], unit.clone());
            unit.reset(BusOrUnitReset::Unit);
        }
        let nexus = NexusNumber(0);
        self.target
            .attach_initiator_and_start_units(nexus, &ports(0));
        for lun in LUNS {
            let task = &mut self.slots[0].task;
            let is_ready = (0..16).any(|_| {
                task.receive(&mut self.views[0], lun, nexus, &[0; 6]);
                // SAFETY: there is no data.
                let step = unsafe { task.run(std::ptr::null_mut(), 0, 0) };
                assert!(matches!(step, AdapterStep::Finished));
                task.status() == Status::Good
            });
            assert!(is_ready, "{:?} {:x?}", task.status(), task.sense());
        }
    }
}
