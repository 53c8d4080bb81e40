//! Commands that read, change and write are atomic to each other: COMPARE AND WRITE and ORWRITE, in any order, of any initiator.

use std::sync::Arc;

use engine::Errno;
use scsi::{AdapterStep, NexusNumber, Status, Unit};

use crate::rig::{BLOCK, LUN, Rig, Running, cdb16, geometry, options};

/// ORWRITE reads and writes so many bytes at a time.
const STEP_BLOCKS: u32 = (256 << 10) / BLOCK as u32;

/// A command that changes the first block of the disk, and what it makes of it.
#[derive(Clone, Copy, Debug)]
enum Command {
    /// Writes ones, if it finds zeroes.
    CompareZeroes,
    /// Writes twos, if it finds ones.
    CompareOnes,
    /// Adds a bit to each byte.
    Or(u8),
}

impl Command {
    /// CDB and data.
    fn parts(self) -> ([u8; 16], Vec<u8>) {
        let compare = |old, new| {
            let mut cdb = cdb16(0x89, 0, 0, 0);
            cdb[13] = 1;
            (cdb, [[old; BLOCK], [new; BLOCK]].concat())
        };
        match self {
            Command::CompareZeroes => compare(0, 1),
            Command::CompareOnes => compare(1, 2),
            Command::Or(bits) => (cdb16(0x8b, 0, 0, 1), vec![bits; BLOCK]),
        }
    }

    /// What it makes of blocks of this byte, and its status, if nothing comes between.
    fn expected(self, byte: u8) -> (u8, Status) {
        match (self, byte) {
            (Command::CompareZeroes, 0) => (1, Status::Good),
            (Command::CompareOnes, 1) => (2, Status::Good),
            (Command::CompareZeroes | Command::CompareOnes, byte) => (byte, Status::CheckCondition),
            (Command::Or(bits), byte) => (byte | bits, Status::Good),
        }
    }
}

const COMMANDS: [Command; 4] = [
    Command::CompareZeroes,
    Command::CompareOnes,
    Command::Or(1),
    Command::Or(4),
];

impl Command {
    fn run(self, rig: &mut Rig, token: u64, nexus: u16) -> Running {
        let (cdb, data) = self.parts();
        rig.run(token, NexusNumber(nexus), &cdb, data)
    }
}

#[test]
fn the_second_command_waits_and_sees_the_result_of_the_first() {
    for first in COMMANDS {
        for second in COMMANDS {
            for other in [0, 1] {
                let mut rig = Rig::plain();
                let mut one = first.run(&mut rig, 1, 0);
                assert!(
                    matches!(one.step, AdapterStep::Submit(_)),
                    "{first:?} reads"
                );
                let two = second.run(&mut rig, 2, other);
                assert!(two.waits(), "{second:?} during {first:?}");
                // Also when the first has read, and what it writes is not there yet.
                rig.step(&mut one);
                let three = second.run(&mut rig, 3, other);
                assert!(three.waits());
                let (mut byte, status) = first.expected(0);
                assert_eq!(rig.finish(one), status);
                for (token, mut next) in [(2, two), (3, three)] {
                    assert_eq!(rig.take_woken(), [token], "{second:?} after {first:?}");
                    next.resume_next();
                    let (after, status) = second.expected(byte);
                    assert_eq!(rig.finish(next), status, "{second:?} after {first:?}");
                    byte = after;
                }
                assert_eq!(rig.disk[..BLOCK], [byte; BLOCK], "{first:?}, {second:?}");
            }
        }
    }
}

#[test]
fn an_or_write_of_several_steps_is_atomic() {
    for second in [Command::CompareZeroes, Command::Or(8)] {
        let mut rig = Rig::plain();
        let blocks = 2 * STEP_BLOCKS + 1;
        let data = vec![2; blocks as usize * BLOCK];
        let mut long = rig.run(1, NexusNumber(0), &cdb16(0x8b, 0, 0, blocks), data);
        let two = second.run(&mut rig, 2, 1);
        let mut steps = 0;
        while !matches!(long.step, AdapterStep::Finished) {
            assert!(
                rig.take_woken().is_empty(),
                "{second:?} after {steps} steps"
            );
            assert!(two.waits());
            rig.step(&mut long);
            steps += 1;
        }
        assert_eq!(steps, 6, "reads and writes of three parts");
        assert_eq!(rig.take_woken(), [2]);
        let mut two = two;
        two.resume_next();
        let (byte, status) = second.expected(2);
        assert_eq!(rig.finish(two), status);
        assert_eq!(rig.disk[..BLOCK], [byte; BLOCK]);
    }
}

#[test]
fn waiting_commands_run_in_order() {
    let mut rig = Rig::plain();
    let one = Command::Or(1).run(&mut rig, 0, 0);
    let order = [
        Command::CompareOnes,
        Command::Or(4),
        Command::CompareZeroes,
        Command::Or(8),
    ];
    let waiting: Vec<Running> = (1..)
        .zip(order)
        .map(|(token, command)| command.run(&mut rig, token, token as u16 % 3))
        .collect();
    assert!(waiting.iter().all(Running::waits));
    assert_eq!(rig.finish(one), Status::Good);
    let mut byte = 1;
    for ((token, command), mut next) in (1..).zip(order).zip(waiting) {
        assert_eq!(rig.take_woken(), [token], "one at a time");
        next.resume_next();
        let (after, status) = command.expected(byte);
        assert_eq!(rig.finish(next), status);
        byte = after;
    }
    assert!(rig.take_woken().is_empty());
    assert_eq!((byte, rig.disk[0]), (14, 14));
}

#[test]
fn a_failed_command_lets_the_next_run() {
    for first in COMMANDS {
        for failing_step in 0..2 {
            let mut rig = Rig::plain();
            let mut one = first.run(&mut rig, 1, 0);
            let mut two = Command::Or(0x40).run(&mut rig, 2, 1);
            for _ in 0..failing_step {
                rig.step(&mut one);
            }
            rig.error = Some(Errno::IO);
            assert_eq!(rig.finish(one), Status::CheckCondition, "{first:?}");
            rig.error = None;
            assert_eq!(rig.take_woken(), [2]);
            two.resume_next();
            assert_eq!(rig.finish(two), Status::Good);
            assert_eq!(rig.disk[..BLOCK], [0x40; BLOCK]);
        }
    }
}

#[test]
fn units_do_not_wait_for_each_other() {
    let mut rig = Rig::plain();
    let other = Arc::new(Unit::new(options(), geometry()).unwrap());
    rig.target
        .add_unit_and_raise_attentions(LUN + 1, other)
        .unwrap();
    while rig.by(NexusNumber(0), &[0; 6]).status != Status::Good {}
    let attention = rig.exchange(LUN + 1, &[0; 6], &[], 0).sense_code();
    assert_eq!(attention, (6, 0x2900));
    let one = Command::Or(1).run(&mut rig, 1, 0);
    let (cdb, data) = Command::CompareOnes.parts();
    let reply = rig.exchange(LUN + 1, &cdb, &data, 0);
    assert_eq!(reply.status, Status::CheckCondition, "it found zeroes");
    assert_eq!(rig.finish(one), Status::Good);
}
