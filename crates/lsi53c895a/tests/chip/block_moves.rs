//! Block moves and what ends them, against the manual's chapters 2 and 5.

use crate::assemble::{ATN, COMMAND, DATA_IN, MSG_IN, MSG_OUT, Program, STATUS, When};
use crate::instructions::{AT, run};
use crate::machine::*;

/// Message and command for an INQUIRY.
fn prepare(machine: &mut Machine) {
    machine.poke(0x8000, &[0x80]);
    machine.poke(0x8010, &[0x12, 0, 0, 0, 36, 0]);
}

/// INQUIRY to target 0, with a program of the test's from the data phase on.
fn inquiry(machine: &mut Machine, rest: impl FnOnce(&mut Program) -> &mut Program) -> Program {
    prepare(machine);
    run(machine, |p| {
        p.command(0, (1, 0x8000), (6, 0x8010));
        rest(p)
    })
}

#[test]
fn block_moves_find_their_address_in_three_ways() {
    let mut machine = Machine::new();
    machine.write32(DSA, 0x8100);
    machine.poke32(0x8040, 0x9010);
    machine.poke32(0x80f8, 26);
    machine.poke32(0x80fc, 0x9020);
    inquiry(&mut machine, |p| {
        p.move_direct(DATA_IN, 6, 0x9000)
            .move_indirect(DATA_IN, 4, 0x8040)
            .move_table(DATA_IN, 0xff_fff8);
        p.move_direct(STATUS, 1, 0x9040)
            .move_direct(MSG_IN, 1, 0x9041)
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(0x9000, 6), b"abcdef");
    assert_eq!(machine.peek(0x9010, 4), b"ghij");
    assert_eq!(machine.peek(0x9020, 3), b"klm");
    assert_eq!(machine.peek(0x9040, 2), [0, 0]);
}

#[test]
fn addresses_of_forty_and_sixty_four_bits() {
    // The memory above 4 GiB here is one that is not mapped, so the addresses show where it is asked for.
    for (ccntl1, table, selector, expected) in [
        (0x06, 0x12 << 24, None, 0x12_0000_9000u64),
        (0x02, 0x05 << 24, Some(SCRATCHC + 4 * 5), 0x77_0000_9000),
        (0x02, 0x14 << 24, Some(0xb0), 0x77_0000_9000),
        (0x00, 0x12 << 24, Some(0xb0), 0x77_0000_9000),
    ] {
        let mut machine = Machine::new();
        machine.write8(CCNTL1, ccntl1);
        machine.write32(DSA, 0x8100);
        machine.poke32(0x8100, table | 36);
        machine.poke32(0x8104, 0x9000);
        prepare(&mut machine);
        let mut program = Program::at(AT);
        program.command(0, (1, 0x8000), (6, 0x8010));
        if let Some(selector) = selector {
            program.load(selector, 4, 0x8020);
            machine.poke32(0x8020, 0x77);
        }
        program.move_table(DATA_IN, 0).int(When::Phase(STATUS), 99);
        machine.poke(AT, &program.bytes());
        machine.write32(DSP, AT);
        machine.run();
        let asked = machine.world.asked.front().map(|(_, addr, _)| *addr);
        assert_eq!(asked, Some(expected), "CCNTL1 {ccntl1:#x}");
    }
}

#[test]
fn a_direct_move_to_sixty_four_bits_has_a_third_word() {
    let mut machine = Machine::new();
    machine.write8(CCNTL1, 0x01);
    prepare(&mut machine);
    run(&mut machine, |p| {
        p.select_atn(0, "x").label("x");
        p.raw(&[0x0600_0001, 0x8000, 0])
            .raw(&[0x0200_0006, 0x8010, 0])
            .raw(&[0x0100_0024, 0x9000, 0]);
        p.int(When::Phase(STATUS), 1)
    });
    machine.expect_int(1);
    assert_eq!(machine.peek(0x9000, 4), b"abcd");
}

#[test]
fn a_phase_mismatch_saves_the_state_to_continue() {
    let mut machine = Machine::new();
    let program = inquiry(&mut machine, |p| {
        p.label("move").move_direct(DATA_IN, 100, 0x9000)
    });
    assert_eq!(machine.read32(DBC) & 0x00ff_ffff, 64);
    assert_eq!(machine.read8(DFIFO), 64);
    assert_eq!(machine.read32(RBC), 0x0100_0040);
    assert_eq!(machine.read32(UA), 0x9024);
    assert_eq!(machine.read32(IA), program.address("move"));
    assert_eq!(machine.read32(ESA), program.address("move"));
    assert_eq!(machine.read32(SBC), 36);
    machine.expect_scsi(0x80, 0);
    assert_eq!(machine.read8(SSTAT1) & 7, 3, "the phase that came instead");
}

#[test]
fn phase_mismatch_jumps_go_to_the_programmed_address() {
    for (ccntl0, jumps) in [(0x00, 0), (0x80, 1), (0xc0, 2)] {
        let mut machine = Machine::new();
        machine.write8(CCNTL0, ccntl0);
        machine.write32(DSA, 0x8100);
        machine.poke32(0x8108, 100);
        machine.poke32(0x810c, 0x9000);
        let mut handlers = Program::at(0x2000);
        handlers.int(When::Always, 1).int(When::Always, 2);
        machine.poke(0x2000, &handlers.bytes());
        machine.write32(PMJAD1, 0x2000);
        machine.write32(PMJAD2, 0x2008);
        inquiry(&mut machine, |p| p.move_table(DATA_IN, 8));
        match jumps {
            0 => machine.expect_scsi(0x80, 0),
            code => machine.expect_int(code),
        }
        assert_eq!((machine.read32(RBC), machine.read32(ESA)), (64, 0x8108));
    }
}

#[test]
fn mismatches_outside_of_data_phases_jump_only_if_asked_to() {
    for (ccntl0, jumps) in [(0xc0, false), (0xe0, true)] {
        let mut machine = Machine::new();
        machine.write8(CCNTL0, ccntl0);
        machine.write32(PMJAD1, 0x2000);
        machine.poke(0x2000, &Program::at(0x2000).int(When::Always, 5).bytes());
        run(&mut machine, |p| {
            p.select_atn(0, "x")
                .label("x")
                .move_direct(COMMAND, 6, 0x8010)
        });
        if jumps {
            machine.expect_int(5)
        } else {
            machine.expect_scsi(0x80, 0)
        }
    }
}

#[test]
fn a_selection_of_a_reselected_chip_jumps_to_the_alternate_address() {
    let mut machine = Machine::new();
    machine.poke(0x8000, &[0xc0]);
    machine.poke(0x8010, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    machine.write8(SCID, 0x47);
    machine.write8(SIEN0, 0x10);
    run(&mut machine, |p| {
        p.command(4, (1, 0x8000), (10, 0x8010));
        p.move_direct(DATA_IN, 512, 0x9000)
            .move_direct(MSG_IN, 2, 0x8020)
            .wait_disconnect()
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(0x8020, 2), [0x02, 0x04]);
    let id = machine.world.running[0];
    machine.finish(id);
    machine.expect_scsi(0x10, 0);
    assert_eq!(machine.read8(SSID), 0x84);
    assert_eq!(machine.read8(SFBR), 0x90, "both IDs, without DCNTL.COM");
    assert_eq!(machine.read8(SBDL), 0x80, "the message that waits");
    // What the table says of transfers counts nevertheless.
    machine.poke(0x8100, &[0, 0x2a, 5, 0x13]);
    machine.write32(DSA, 0x8100);
    run(&mut machine, |p| {
        p.select_table_atn(0, "other").int(When::Always, 1);
        p.label("other")
            .wait_reselect("never")
            .move_direct(MSG_IN, 1, 0x8020)
            .move_direct(STATUS, 1, 0x8021);
        p.move_direct(MSG_IN, 1, 0x8022)
            .wait_disconnect()
            .label("never")
    });
    machine.expect_int(99);
    assert_eq!(machine.peek(0x8020, 3), [0x80, 0, 0]);
    assert_eq!((machine.read8(SCNTL3), machine.read8(SXFER)), (0x13, 0x2a));
    assert_eq!(machine.read8(SBCL), 0, "the bus is free");
}

#[test]
fn atn_and_ack_show_until_they_are_cleared() {
    let mut machine = Machine::new();
    inquiry(&mut machine, |p| {
        p.move_direct(DATA_IN, 36, 0x9000)
            .move_direct(STATUS, 1, 0x8020)
            .move_direct(MSG_IN, 1, 0x8021);
        p.int(When::Always, 1)
            .set(ATN)
            .clear(1 << 6)
            .int(When::Phase(MSG_OUT), 2)
    });
    machine.expect_int(1);
    assert_eq!(machine.read8(SBCL) & 0x48, 0x40, "ACK is held");
    let dsp = machine.read32(DSP);
    machine.write32(DSP, dsp);
    machine.go();
    machine.expect_int(2);
    let lines = machine.read8(SBCL) & 0x48;
    assert_eq!(lines, 0x08, "the target answers to ATN");
}
