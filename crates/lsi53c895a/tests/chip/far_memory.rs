//! Tests of memory that is not mapped: the chip starts an access, pauses, and continues when the reply is there.

use lsi53c895a::chip::{BusFault, CheckConditionCause, RunOutcome};

use crate::assemble::{DATA_IN, DATA_OUT, MSG_IN, Program, STATUS, When};
use crate::driver::{Done, transfer};
use crate::machine::*;

fn far(offset: u32) -> u32 {
    FAR + offset
}

#[test]
fn a_whole_command_works_in_memory_that_is_not_mapped() {
    for (opcode, phase) in [(0x28, DATA_IN), (0x2a, DATA_OUT)] {
        let mut machine = Machine::new();
        let blocks = 20u8;
        let len = usize::from(blocks) * BLOCK;
        let [table, pointer, data, answer] = [0x1100, 0x1200, 0x2004, 0x1020].map(far);
        let pattern: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0] ^ 0x55).collect();
        machine.poke(far(0x1000), &[0x80]);
        let cdb = [opcode, 0, 0, 0, 0, 2, 0, 0, blocks, 0];
        machine.poke(far(0x1010), &cdb);
        machine.poke(data, &pattern);
        machine.poke32(table, u32::from(blocks) * 512);
        machine.poke32(table + 4, data);
        machine.poke32(pointer, table);
        machine.poke(answer, &[0xff; 2]);
        let mut p = Program::at(far(0));
        p.load(DSA, 4, pointer)
            .command(0, (1, far(0x1000)), (10, far(0x1010)))
            .move_table(phase, 0)
            .move_direct(STATUS, 1, answer)
            .move_direct(MSG_IN, 1, answer + 1)
            .wait_disconnect()
            .copy(8, answer, answer + 8)
            .int(When::Always, 99);
        machine.start(&p, far(0));
        let id = machine.world.running[0];
        assert_eq!(machine.world.task(id).data_bytes(), len);
        machine.finish(id);
        machine.expect_int(99);
        assert_eq!(machine.peek(answer, 2), [0, 0]);
        assert_eq!(machine.peek(answer + 8, 2), [0, 0]);
        assert_eq!(machine.peek(data, len), machine.world.disk[1024..][..len]);
        assert_eq!(machine.peek(data, len + 1)[len], 0, "and nothing behind it");
    }
}

#[test]
fn the_status_comes_after_the_data_is_written_back() {
    let mut machine = Machine::new();
    machine.poke(0x8000, &[0x80]);
    machine.poke(0x8010, &[0x12, 0, 0, 0, 36, 0]);
    let mut p = Program::at(0x1000);
    p.command(0, (1, 0x8000), (6, 0x8010));
    p.move_direct(DATA_IN, 36, far(0))
        .int(When::Phase(STATUS), 99);
    machine.poke(0x1000, &p.bytes());
    machine.write32(DSP, 0x1000);
    assert_eq!(machine.run(), RunOutcome::Idle);
    assert_eq!(machine.read8(ISTAT0) & 0x03, 0, "it waits");
    assert!(machine.answer_memory(true));
    machine.run();
    machine.expect_int(99);
    assert_eq!(machine.world.far[..4], *b"abcd");
}

#[test]
fn access_to_missing_memory_is_a_bus_fault() {
    for read in [true, false] {
        let mut machine = Machine::new();
        let nowhere = far(u32::try_from(FAR_BYTES).unwrap());
        let mut p = Program::at(0x1000);
        if read {
            p.load(SCRATCHA, 4, nowhere)
        } else {
            p.store(SCRATCHA, 4, nowhere)
        };
        p.int(When::Always, 99);
        machine.start(&p, 0x1000);
        assert_eq!(machine.read8(DSTAT), 0xa0);
    }
}

#[test]
fn answers_that_come_after_a_reset_are_ignored() {
    let mut machine = Machine::new();
    machine.poke(far(0), &[0xff; 16]);
    machine.write32(DSP, far(0));
    machine.run();
    assert_eq!(machine.world.asked.len(), 1);
    machine.write8(ISTAT0, 0x40);
    machine.write32(DSP, far(8));
    machine.run();
    assert_eq!(machine.world.asked.len(), 2);
    // The first reply is ignored.
    assert!(machine.answer_memory(true));
    machine.run();
    assert_eq!(machine.read8(DSTAT), 0x80);
    assert!(machine.answer_memory(true));
    machine.run();
    let dstat = machine.read8(DSTAT);
    assert_eq!(dstat, 0x81, "now the instruction is there, and is none");
}

#[test]
fn a_program_that_is_started_again_is_read_again() {
    let program = |code| {
        let mut p = Program::at(FAR);
        p.int(When::Always, code);
        p.bytes()
    };
    // What was asked for comes before the program changes, or after it has been started again, or never.
    for (aborts, answered) in [(true, 1), (true, 0), (false, 0), (false, 1)] {
        let mut machine = Machine::new();
        machine.poke(far(0), &program(1));
        machine.write32(DSP, FAR);
        machine.run();
        let old = machine.world.asked.pop_front().unwrap();
        let bytes = machine.world.far[..8].to_vec();
        let answer = |machine: &mut Machine| machine.chip.on_dma_done(old.0, Ok(&bytes));
        if aborts {
            machine.write8(ISTAT0, 0x80);
            machine.write8(ISTAT0, 0);
            assert_eq!(machine.read8(DSTAT), 0x90);
        }
        if answered == 1 {
            answer(&mut machine);
        }
        machine.poke(far(0), &program(2));
        machine.write32(DSP, FAR);
        if answered == 0 {
            answer(&mut machine);
        }
        machine.go();
        machine.expect_int(2);
    }
}

#[test]
fn an_access_that_an_abort_has_ended_cannot_fail() {
    let mut machine = Machine::new();
    machine.write32(DSP, FAR);
    machine.run();
    machine.write8(ISTAT0, 0x80);
    let asked = machine.world.asked.pop_front().unwrap();
    machine.chip.on_dma_done(asked.0, Err(BusFault));
    machine.go();
    assert_eq!(machine.read8(DSTAT), 0x90, "aborted, and no bus fault");
    assert_eq!(machine.read8(DSTAT), 0x80);
}

#[test]
fn registers_are_accessible_during_a_memory_access() {
    let mut machine = Machine::new();
    machine.write32(DSP, far(0));
    assert_eq!(machine.run(), RunOutcome::Idle);
    assert_eq!(machine.read8(ISTAT1), 0x02);
    machine.write32(SCRATCHA, 7);
    assert_eq!(machine.read32(SCRATCHA), 7);
    assert_eq!(machine.run(), RunOutcome::Idle);
    assert_eq!(machine.world.asked.len(), 1, "asked once");
}

#[test]
fn commands_beyond_the_bounce_buffer_limit_fail() {
    const MIB: u32 = 1 << 20;
    let mut driver = Driver::new(Machine::new());
    let mut order = transfer(0x2a, 0, None, 0, 2048, 0);
    order.pieces = vec![(far(0), 0x1_0000); 16];
    for tag in 0..16 {
        order.tag = Some(tag);
        driver.submit(&order);
    }
    assert_eq!(driver.machine.world.runs, [u64::from(MIB); 16]);
    order.tag = Some(16);
    driver.submit(&order);
    let refused = Done {
        block: 16,
        status: CHECK_CONDITION,
        residual: MIB,
    };
    assert_eq!(driver.completions(), [refused]);
    let first = driver.machine.world.running[0];
    driver.machine.finish(first);
    order.tag = Some(17);
    driver.submit(&order);
    let running = driver.machine.world.running.len();
    assert_eq!(running, 16, "there is room again");
}

#[test]
fn buffers_in_too_many_pieces_fail_and_nothing_is_moved() {
    let mut machine = Machine::new();
    machine.poke(0x8000, &[0x80]);
    machine.poke(0x8010, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 128, 0]);
    let mut p = Program::at(0x1000);
    p.command(0, (1, 0x8000), (10, 0x8010));
    // A byte from here, and again from here, until the target has had enough.
    p.label("more")
        .move_direct(DATA_OUT, 1, 0x9000)
        .jump(When::Phase(DATA_OUT), "more");
    p.move_direct(STATUS, 1, 0x8020).int(When::Always, 99);
    machine.start(&p, 0x1000);
    machine.expect_int(99);
    assert_eq!(machine.peek(0x8020, 1), [CHECK_CONDITION]);
    assert_eq!(machine.world.runs, [0]);
    let refused = machine.world.tasks.values().next().unwrap().refused;
    assert_eq!(refused, Some(CheckConditionCause::DataPhase));
}
