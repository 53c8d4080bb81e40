//! Reads and writes in mapped memory allocate nothing, once each slot has held a list as long.

use test_support::allocations;

use crate::assemble::{DATA_IN, DATA_OUT, MSG_IN, Program, STATUS, When};
use crate::machine::*;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const MESSAGE: u32 = 0x100;
const ANSWER: u32 = 0x300;

/// Allocations of the chip so far.
fn allocated(machine: &Machine) -> u64 {
    allocations::of_this_thread() - machine.world.own_allocations
}

#[test]
fn commands_allocate_nothing() {
    let mut machine = Machine::new();
    machine.poke(MESSAGE, &[0xc0, 0x20, 1]);
    let programs = [(0x1000, 0x28, DATA_IN), (0x2000, 0x2a, DATA_OUT)];
    for (base, opcode, phase) in programs {
        let cdb = base + 0x200;
        machine.poke(cdb, &[opcode, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
        let mut p = Program::at(base);
        p.command(0, (3, MESSAGE), (10, cdb))
            .move_direct(phase, 1024, 0x4000)
            .move_direct(phase, 3072, 0x8000)
            .move_direct(MSG_IN, 2, ANSWER)
            .wait_disconnect()
            .wait_reselect("never")
            .move_direct(MSG_IN, 3, ANSWER)
            .move_direct(STATUS, 1, ANSWER)
            .move_direct(MSG_IN, 1, ANSWER + 1)
            .wait_disconnect()
            .label("never")
            .int(When::Always, 1);
        machine.poke(base, &p.bytes());
    }
    let mut after_some = 0;
    for i in 0..200 {
        let before = allocated(&machine);
        machine.write32(DSP, programs[i % 2].0);
        machine.run();
        machine.finish_quietly(machine.world.running[0], GOOD);
        machine.run();
        if i >= 2 {
            after_some += allocated(&machine) - before;
        }
        machine.expect_int(1);
        assert_eq!(machine.peek(ANSWER, 2), [0, 0]);
    }
    assert_eq!(after_some, 0);
    let before = allocated(&machine);
    drop(std::hint::black_box(vec![0_u8; 64]));
    assert_eq!(allocated(&machine), before + 1, "the counter counts");
}
