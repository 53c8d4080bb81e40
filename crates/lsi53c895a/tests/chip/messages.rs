//! Tests of messages from the initiator, and of the target's answers.

use lsi53c895a::chip::{CheckConditionCause, ResetScope, TargetAndLun};

use crate::assemble::{
    ACK, ATN, COMMAND, DATA_IN, DATA_OUT, MSG_IN, MSG_OUT, Program, STATUS, When,
};
use crate::machine::*;

const AT: u32 = 0x1000;
const OUT: u32 = 0x8000;
const CDB: u32 = 0x8100;
const IN: u32 = 0x8200;
const BUFFER: u32 = 0x9000;

/// Selects target 3 with these messages, and goes on with a program of the test's.
fn say(machine: &mut Machine, message: &[u8], rest: impl FnOnce(&mut Program) -> &mut Program) {
    machine.poke(OUT, message);
    let mut p = Program::at(AT);
    p.select_atn(3, "x")
        .label("x")
        .move_direct(MSG_OUT, message.len(), OUT);
    rest(&mut p);
    p.int(When::Always, 99);
    machine.start(&p, AT);
}

/// What the target says to these messages, before it asks for the command.
#[track_caller]
fn answer_to(message: &[u8], len: usize) -> Vec<u8> {
    let mut machine = Machine::new();
    say(&mut machine, message, |p| {
        if len > 0 {
            p.move_direct(MSG_IN, len, IN).clear(ACK);
        }
        p.int(When::NotPhase(COMMAND), 1)
    });
    machine.expect_int(99);
    machine.peek(IN, len)
}

#[test]
fn negotiations_are_answered_within_what_ultra2_can_do() {
    for (message, answer) in [
        (&[0xc0, 1, 2, 3, 1][..], &[1, 2, 3, 1][..]),
        // Not 32 bits wide.
        (&[0xc0, 1, 2, 3, 2], &[1, 2, 3, 1]),
        (&[0xc0, 0x20, 5, 1, 3, 1, 12, 16], &[1, 3, 1, 12, 16]),
        (&[0xc0, 1, 3, 1, 8, 63], &[1, 3, 1, 10, 31]),
        // Not Ultra3's double transitions.
        (
            &[0xc0, 1, 6, 4, 9, 0, 62, 1, 2],
            &[1, 6, 4, 10, 0, 31, 1, 0],
        ),
    ] {
        assert_eq!(answer_to(message, answer.len()), answer, "{message:x?}");
    }
}

#[test]
fn unknown_messages_are_rejected() {
    for message in [
        &[0xc0, 0x04][..],
        &[0xc0, 0x0f],
        &[0xc0, 0x16],
        &[0xc0, 0x23, 1],
        &[0xc0, 0x55],
        &[0xc0, 1, 1, 9],
        &[0xc0, 1, 4, 1, 2, 3, 4],
    ] {
        assert_eq!(answer_to(message, 1), [0x07], "{message:x?}");
    }
}

#[test]
fn messages_without_effect_are_accepted() {
    for message in [
        &[0xc0, 0x08][..],
        &[0xc0, 0x07],
        &[0x80],
        &[0xc5, 0x20, 1, 0x08, 0x08],
    ] {
        answer_to(message, 0);
    }
}

#[test]
fn a_message_in_two_moves_is_one_message() {
    let mut machine = Machine::new();
    machine.poke(OUT + 16, &[1, 2, 3]);
    machine.poke(OUT + 32, &[1]);
    say(&mut machine, &[0xc0], |p| {
        p.int(When::NotPhase(COMMAND), 1)
            .set(ATN)
            .int(When::NotPhase(MSG_OUT), 2);
        p.move_direct(MSG_OUT, 3, OUT + 16)
            .int(When::NotPhase(MSG_OUT), 3)
            .move_direct(MSG_OUT, 1, OUT + 32);
        p.move_direct(MSG_IN, 4, IN)
            .clear(ACK)
            .int(When::NotPhase(COMMAND), 4)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(IN, 4), [1, 2, 3, 1]);
}

#[test]
fn a_selection_without_atn_takes_a_command_or_a_message() {
    for (first, len) in [(COMMAND, 6), (MSG_OUT, 1)] {
        let mut machine = Machine::new();
        machine.poke(OUT, &[0x81]);
        machine.poke(CDB, &[0; 6]);
        let mut p = Program::at(AT);
        p.select(3)
            .move_direct(first, len, if first == COMMAND { CDB } else { OUT });
        if first == MSG_OUT {
            p.move_direct(COMMAND, 6, CDB);
        }
        p.move_direct(STATUS, 1, IN).int(When::Always, 99);
        machine.start(&p, AT);
        machine.expect_int(99);
        let task = machine.world.tasks.values().next().unwrap();
        assert_eq!(task.nexus.lun, u8::from(first == MSG_OUT));
    }
}

#[test]
fn the_last_message_is_repeated_after_a_parity_error() {
    let mut machine = Machine::new();
    machine.poke(OUT + 16, &[0x09]);
    say(&mut machine, &[0xc0, 1, 2, 3, 1], |p| {
        p.move_direct(MSG_IN, 4, IN)
            .set(ATN)
            .clear(ACK)
            .int(When::NotPhase(MSG_OUT), 1)
            .move_direct(MSG_OUT, 1, OUT + 16);
        p.move_direct(MSG_IN, 4, IN + 16)
            .clear(ACK)
            .int(When::NotPhase(COMMAND), 2)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(IN + 16, 4), [1, 2, 3, 1]);
}

#[test]
fn a_disconnection_can_be_rejected_until_it_is_acknowledged() {
    let mut machine = Machine::new();
    machine.poke(CDB, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    machine.poke(OUT + 16, &[0x07]);
    say(&mut machine, &[0xc0], |p| {
        p.move_direct(COMMAND, 10, CDB).move_direct(MSG_IN, 1, IN);
        p.set(ATN)
            .clear(ACK)
            .int(When::NotPhase(MSG_OUT), 1)
            .move_direct(MSG_OUT, 1, OUT + 16)
            .wait_disconnect()
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(IN, 1), [0x04]);
}

#[test]
fn an_error_that_the_initiator_saw_in_the_data_phase_fails_the_command() {
    let mut machine = Machine::new();
    machine.poke(CDB, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    machine.poke(OUT + 16, &[0x05]);
    say(&mut machine, &[0xc0], |p| {
        p.move_direct(COMMAND, 10, CDB)
            .move_direct(DATA_OUT, 256, BUFFER);
        p.set(ATN)
            .int(When::NotPhase(MSG_OUT), 1)
            .move_direct(MSG_OUT, 1, OUT + 16);
        p.move_direct(STATUS, 1, IN).move_direct(MSG_IN, 1, IN + 1)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(IN, 2), [CHECK_CONDITION, 0]);
    let refused = machine.world.tasks.values().next().unwrap().refused;
    assert_eq!(refused, Some(CheckConditionCause::InitiatorError));
    assert_eq!(machine.world.runs, [0], "nothing was written");
}

#[test]
fn a_message_in_the_middle_of_data_does_not_disturb_it() {
    let mut machine = Machine::new();
    machine.poke(CDB, &[0x12, 0, 0, 0, 36, 0]);
    machine.poke(OUT + 16, &[0x08]);
    say(&mut machine, &[0xc0], |p| {
        p.move_direct(COMMAND, 6, CDB)
            .move_direct(DATA_IN, 10, BUFFER);
        p.set(ATN)
            .int(When::NotPhase(MSG_OUT), 1)
            .move_direct(MSG_OUT, 1, OUT + 16);
        p.move_direct(DATA_IN, 26, BUFFER + 10)
            .move_direct(STATUS, 1, IN)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(BUFFER, 12), b"abcdefghijkl");
}

/// Puts reads in flight: for each (LUN, tag) one, on target 3.
fn in_flight(machine: &mut Machine, nexuses: &[(u8, u8)]) {
    machine.poke(CDB, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    for (lun, tag) in nexuses {
        say(machine, &[0xc0 | lun, 0x20, *tag], |p| {
            p.move_direct(COMMAND, 10, CDB)
                .move_direct(DATA_IN, 512, BUFFER)
                .move_direct(MSG_IN, 2, IN)
                .wait_disconnect()
        });
        machine.expect_int(99);
    }
    assert_eq!(machine.world.running.len(), nexuses.len());
}

#[test]
fn aborts_and_resets_reach_exactly_the_tasks_they_name() {
    let unit = ResetScope::Unit(TargetAndLun { target: 3, lun: 1 });
    let target = ResetScope::Target(3);
    for (name, message, left, resets) in [
        (
            "ABORT TAG",
            &[0xc0, 0x20, 2, 0x0d][..],
            &[0, 2][..],
            &[][..],
        ),
        ("ABORT TAG of none", &[0xc0, 0x0d], &[0, 1, 2], &[]),
        ("ABORT", &[0xc0, 0x06], &[2], &[]),
        ("ABORT of the other unit", &[0xc1, 0x06], &[0, 1], &[]),
        ("CLEAR QUEUE", &[0xc0, 0x0e], &[2], &[]),
        ("LOGICAL UNIT RESET", &[0xc1, 0x17], &[0, 1], &[unit]),
        ("BUS DEVICE RESET", &[0xc0, 0x0c], &[], &[target]),
        (
            "a target that is to disconnect ignores further messages",
            &[0xc0, 0x20, 1, 0x0d, 0xc1, 0x06, 0x0c],
            &[1, 2],
            &[],
        ),
    ] {
        let mut machine = Machine::new();
        in_flight(&mut machine, &[(0, 1), (0, 2), (1, 1)]);
        say(&mut machine, message, |p| {
            p.clear(ACK | ATN).wait_disconnect()
        });
        machine.expect_int(99);
        assert_eq!(machine.read8(ISTAT0) & 0x08, 0, "the bus is free");
        let running = machine.world.running.iter().map(|id| id.index);
        assert_eq!(running.collect::<Vec<_>>(), left, "{name}");
        assert_eq!(machine.world.resets, resets, "{name}");
    }
}

#[test]
fn a_reselection_can_be_answered_with_an_abort() {
    let mut machine = Machine::new();
    in_flight(&mut machine, &[(0, 9)]);
    let id = machine.world.running[0];
    machine.finish_quietly(id, GOOD);
    machine.poke(OUT, &[0x0d]);
    let mut p = Program::at(AT);
    // It knows enough after IDENTIFY, and never hears the tag.
    p.wait_reselect("x").label("x").move_direct(MSG_IN, 1, IN);
    p.set(ATN)
        .clear(ACK)
        .int(When::NotPhase(MSG_OUT), 1)
        .move_direct(MSG_OUT, 1, OUT)
        .wait_disconnect();
    p.int(When::Always, 99);
    machine.start(&p, AT);
    machine.expect_int(99);
    assert_eq!(machine.peek(IN, 1), [0x80]);
    assert_eq!(machine.chip.in_flight_task_count(), 0);
}

#[test]
fn a_message_that_overwrites_the_abort_register_ends_its_move() {
    let mut machine = Machine::new();
    in_flight(&mut machine, &[(0, 9)]);
    let id = machine.world.running[0];
    machine.finish_quietly(id, GOOD);
    let mut p = Program::at(AT);
    // IDENTIFY is the bit that aborts. More is asked for than the target says.
    p.wait_reselect("x")
        .label("x")
        .move_direct(MSG_IN, 4, BARS.registers + u32::from(ISTAT0))
        .int(When::Always, 1);
    machine.start(&p, AT);
    assert_eq!(machine.read8(DSTAT), 0x90);
    machine.expect_scsi(0, 0);
}
