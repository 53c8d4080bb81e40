//! Every class of SCRIPTS instruction against the manual's chapter 5.

use crate::assemble::{CARRY, DATA_IN, MSG_OUT, Program, STATUS, When};
use crate::machine::*;

pub const AT: u32 = 0x1000;
const IID: u8 = 0x81;

/// Runs what `write` assembles, which ends in an INT of 99 unless it does not get there.
pub fn run(machine: &mut Machine, write: impl FnOnce(&mut Program) -> &mut Program) -> Program {
    let mut program = Program::at(AT);
    write(&mut program);
    program.int(When::Always, 99);
    machine.start(&program, AT);
    program
}

/// The same in a new machine.
pub fn ran(write: impl FnOnce(&mut Program) -> &mut Program) -> Machine {
    let mut machine = Machine::new();
    run(&mut machine, write);
    machine
}

#[test]
fn register_operations() {
    for (operator, start, data, carry_in, result, carry_out) in [
        (0, 0x12, 0x34, false, 0x34, false),
        (1, 0x81, 0, false, 0x02, true),
        (1, 0x01, 0, true, 0x03, false),
        (2, 0x0f, 0xf0, false, 0xff, false),
        (3, 0xff, 0x0f, false, 0xf0, false),
        (4, 0x3c, 0x0f, false, 0x0c, false),
        (5, 0x81, 0, false, 0x40, true),
        (5, 0x80, 0, true, 0xc0, false),
        (6, 0xff, 0x02, true, 0x01, true),
        (7, 0x10, 0x02, true, 0x13, false),
        (7, 0xff, 0x00, true, 0x00, true),
    ] {
        for opcode in [5, 6, 7] {
            let mut machine = Machine::new();
            machine.write8(SCRATCHA, if opcode == 5 { 0xee } else { start });
            machine.write8(SFBR, if opcode == 5 { start } else { 0xee });
            run(&mut machine, |p| {
                match carry_in {
                    true => p.set(CARRY),
                    false => p.clear(CARRY),
                };
                p.register(opcode, operator, SCRATCHA, data);
                p.int(When::Carry, 1).int(When::NotCarry, 2)
            });
            let place = if opcode == 6 { SFBR } else { SCRATCHA };
            let found = machine.read8(place);
            assert_eq!(found, result, "opcode {opcode} operator {operator}");
            // ADD leaves what it makes, the logical ones what was there.
            let carry = if matches!(operator, 0 | 2 | 3 | 4) {
                carry_in
            } else {
                carry_out
            };
            machine.expect_int(if carry { 1 } else { 2 });
        }
    }
}

#[test]
fn register_operations_with_sfbr_as_the_operand_and_upper_registers() {
    let mut machine = Machine::new();
    machine.write8(SFBR, 0x21);
    machine.write8(IA, 0x10);
    run(&mut machine, |p| {
        // IA is register D4: its bit 7 has a place of its own. Bit 23 says SFBR.
        let [word, second] = [0x7800_0000 | 6 << 24 | 1 << 23 | 0x54 << 16 | 0x80, 0];
        p.raw(&[word, second])
    });
    assert_eq!(machine.read8(IA), 0x31);
}

#[test]
fn jumps_calls_and_returns() {
    let mut machine = Machine::new();
    let program = run(&mut machine, |p| {
        p.call(When::Always, "sub")
            .label("back")
            .jump(When::Always, "on")
            .int(When::Always, 1);
        p.label("sub")
            .register(7, 0, SCRATCHA, 7)
            .ret(When::Always)
            .int(When::Always, 2);
        p.label("on")
    });
    machine.expect_int(99);
    assert_eq!(
        (machine.read8(SCRATCHA), machine.read32(TEMP)),
        (7, program.address("back"))
    );
}

#[test]
fn relative_jumps_count_from_the_next_instruction() {
    let mut machine = ran(|p| {
        p.raw(&[0x8088_0000, 16]).int(When::Always, 1);
        p.raw(&[0x8088_0000, 8]);
        p.raw(&[0x8088_0000, 0x00ff_fff0])
    });
    machine.expect_int(99);
}

#[test]
fn comparisons_of_data_under_a_mask() {
    for (sfbr, when, jumps) in [
        (0x42, When::Data(0x42, 0), true),
        (0x43, When::Data(0x42, 0), false),
        (0x43, When::Data(0x42, 0x01), true),
        (0x43, When::NotData(0x42, 0x01), false),
        (0x43, When::NotData(0x42, 0), true),
    ] {
        let mut machine = Machine::new();
        machine.write8(SFBR, sfbr);
        run(&mut machine, |p| p.int(when, 1));
        machine.expect_int(if jumps { 1 } else { 99 });
    }
}

#[test]
fn a_comparison_of_nothing_is_decided_by_bit_19() {
    ran(|p| p.raw(&[0x9800_0000, 1])).expect_int(99);
}

#[test]
fn phases_and_data_are_compared_together() {
    for (phase, data, jumps) in [(MSG_OUT, 5, true), (MSG_OUT, 6, false), (STATUS, 5, false)] {
        let mut machine = Machine::new();
        machine.write8(SFBR, 5);
        run(&mut machine, |p| {
            p.select_atn(0, "x").label("x");
            p.raw(&[
                0x9800_0000 | 1 << 19 | 1 << 18 | 1 << 17 | 1 << 16 | phase << 24 | data,
                1,
            ])
        });
        machine.expect_int(if jumps { 1 } else { 99 });
    }
}

#[test]
fn memory_moves() {
    let mut machine = Machine::new();
    let bytes: Vec<u8> = (0..10_000u32)
        .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
        .collect();
    machine.poke(0x8001, &bytes);
    run(&mut machine, |p| {
        p.copy(10_000, 0x8001, 0x2_0001);
        p.copy(4, 0x8001 + 3, BARS.registers + u32::from(SCRATCHA));
        p.copy(4, BARS.registers + u32::from(SCRATCHA), BARS.ram + 0x1000);
        p.copy(4, BARS.ram + 0x1000, 0x9_0000)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(0x2_0001, 10_000), bytes);
    assert_eq!(machine.peek(0x9_0000, 4), &bytes[3..7]);
}

#[test]
fn memory_moves_to_and_from_registers_in_io_space() {
    let mut machine = Machine::new();
    machine.poke32(0x8000, 0x0403_0201);
    machine.write8(DMODE, 0x10);
    run(&mut machine, |p| {
        p.copy(4, 0x8000, BARS.io + u32::from(SCRATCHA))
    });
    machine.expect_int(99);
    assert_eq!(machine.read32(SCRATCHA), 0x0403_0201);
    machine.write8(DMODE, 0x20);
    run(&mut machine, |p| {
        p.copy(4, BARS.io + u32::from(SCRATCHA), 0x8010)
    });
    assert_eq!(machine.peek32(0x8010), 0x0403_0201);
    // Ports of other devices.
    machine.read8(DSTAT);
    run(&mut machine, |p| p.copy(4, 0x60, 0x8010));
    assert_eq!(machine.read8(DSTAT), 0xa0, "bus fault");
}

#[test]
fn load_and_store() {
    let mut machine = Machine::new();
    machine.poke32(0x8000, 0x4433_2211);
    machine.write32(DSA, 0x8010);
    run(&mut machine, |p| {
        p.load(SCRATCHA, 4, 0x8000).load(SCRATCHB + 1, 2, 0x8001);
        p.store_dsa(SCRATCHA, 4, 0xff_fff4u32)
            .store(SCRATCHA + 3, 1, 0x8023)
            .load_dsa(SCRATCHC, 4, 0xff_fff0)
    });
    machine.expect_int(99);
    assert_eq!(machine.read32(SCRATCHA), 0x4433_2211);
    assert_eq!(machine.read32(SCRATCHB), 0x0033_2200);
    assert_eq!(machine.read32(SCRATCHC), 0x4433_2211);
    assert_eq!(machine.peek32(0x8004), 0x4433_2211);
    assert_eq!(machine.peek(0x8020, 4), [0, 0, 0, 0x44]);
}

#[test]
fn load_and_store_reach_the_last_register() {
    let mut machine = Machine::new();
    machine.poke32(0x8000, 0x4433_2211);
    run(&mut machine, |p| {
        p.load(0xfc, 4, 0x8000).store(0xfc, 4, 0x8004)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek32(0x8004), 0x4433_2211);
}

#[test]
fn illegal_instructions() {
    for words in [
        // Reserved bit 22; carry with data; carry with phase; opcode 4 of transfer control.
        &[0x8048_0000, 0][..],
        &[0x802c_0000, 0],
        &[0x802a_0000, 0],
        &[0xa008_0000, 0],
        // A block move of nothing.
        &[0x0100_0000, 0x8000],
        // Load and store: counts, words crossed, addresses that sit differently.
        &[0xe134_0000, 0x8000],
        &[0xe134_0005, 0x8000],
        &[0xe136_0003, 0x8002],
        &[0xe134_0001, 0x8001],
        // Memory move: reserved bits, addresses that sit differently.
        &[0xc200_0004, 0x8000, 0x9000],
        &[0xc000_0004, 0x8001, 0x9000],
    ] {
        let mut machine = ran(|p| p.raw(words));
        assert_eq!(machine.read8(DSTAT), IID, "{words:x?}");
    }
}

#[test]
fn an_empty_word_is_passed_over() {
    ran(|p| p.raw(&[0, 0, 0])).expect_int(99);
}

#[test]
fn an_instruction_shows_in_the_registers_it_is_fetched_into() {
    let mut machine = Machine::new();
    machine.start(Program::at(AT).int(When::Always, 0x0a0b_0c0d), AT);
    assert_eq!(machine.read32(DBC), 0x9808_0000);
    assert_eq!(machine.read32(DSPS), 0x0a0b_0c0d);
    assert_eq!(machine.read32(DSP), AT + 8);
}

#[test]
fn selecting_a_missing_target_times_out_when_it_is_needed() {
    for target in [3, 7] {
        let mut machine = Machine::new();
        // The chip does not answer itself.
        machine.world.present = vec![7];
        run(&mut machine, |p| {
            p.select_atn(target, "x")
                .label("x")
                .register(7, 0, SCRATCHA, 9)
                .int(When::NotPhase(MSG_OUT), 1)
        });
        assert_eq!(machine.read8(SCRATCHA), 9);
        let dsp = machine.read32(DSP);
        assert_eq!(dsp, AT + 24, "behind the instruction that needed it");
        machine.expect_scsi(0, 0x04);
        assert_eq!(u32::from(machine.read8(SDID)), target);
    }
}

#[test]
fn status_registers_show_the_target_and_the_bus_lines() {
    let mut machine = ran(|p| {
        p.select_atn(2, "x")
            .label("x")
            .int(When::NotPhase(MSG_OUT), 1)
    });
    machine.expect_int(99);
    assert_eq!(machine.read8(ISTAT0) & 0x08, 0x08);
    assert_eq!(machine.read8(SCNTL1) & 0x10, 0x10);
    assert_eq!(machine.read8(SSTAT2) & 0x02, 0);
    let lines = machine.read8(SBCL);
    assert_eq!(lines, 0x80 | 0x20 | 0x08 | 6, "REQ, BSY, ATN, message out");
    assert_eq!(machine.read8(SSTAT1) & 7, 6);
}

#[test]
fn the_bus_going_free_unexpectedly_is_an_interrupt() {
    let mut machine = ran(|p| p.move_direct(DATA_IN, 4, 0x8000));
    machine.expect_scsi(0x04, 0);
}

#[test]
fn the_signal_bit_ends_a_wait_for_reselection() {
    let mut machine = ran(|p| {
        p.wait_reselect("called")
            .int(When::Always, 1)
            .label("called")
    });
    assert_eq!(machine.read8(ISTAT1), 2);
    machine.write8(ISTAT0, 0x20);
    machine.go();
    machine.expect_int(99);
}
