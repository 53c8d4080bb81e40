//! The register file, as the manual's chapter 4 describes it.

use crate::assemble::{Program, When};
use crate::instructions::{ran, run};
use crate::machine::*;

#[test]
fn registers_have_their_values_after_a_reset() {
    let mut machine = Machine::new();
    for (register, value) in [
        (SCNTL0, 0xc0),
        (SCNTL1, 0x00),
        (SCID, 0x07),
        (DSTAT, 0x80),
        (SSTAT0, 0x00),
        (SSTAT2, 0x02),
        (ISTAT0, 0x00),
        (ISTAT1, 0x00),
        (CTEST2, 0x31),
        (0x19, 0xf0),
        (SIST0, 0x00),
        (SIST1, 0x00),
        (STEST4, 0xe0),
        (0xf0, 0x00),
    ] {
        assert_eq!(machine.read8(register), value, "register {register:#x}");
    }
    assert!(!machine.chip.irq_level());
}

#[test]
fn status_registers_pass_the_probe_of_linux() {
    let mut machine = Machine::new();
    machine.write32(DSTAT, 0xffff_ffff);
    let read = machine.read32(DSTAT);
    assert_eq!(read & 0xe2f0_fffd, 0x0200_0080, "{read:#x}");
}

#[test]
fn words_are_four_bytes_little_endian_and_the_memory_window_repeats() {
    let mut machine = Machine::new();
    machine.write32(SCRATCHA, 0x1234_5678);
    assert_eq!(machine.read8(SCRATCHA), 0x78);
    assert_eq!(machine.read8(SCRATCHA + 3), 0x12);
    let at = u64::from(SCRATCHA);
    let found = machine.read(1, 0x300 + at - 4, 8);
    assert_eq!(found[4..], [0x78, 0x56, 0x34, 0x12]);
    machine.write(1, 0x100 + at + 1, &[0xaa]);
    assert_eq!(machine.read32(SCRATCHA), 0x1234_aa78);
}

#[test]
fn accesses_beyond_a_window_read_ones_and_write_nothing() {
    let mut machine = Machine::new();
    for (window, end) in [
        (0, 0x100),
        (1, 0x400),
        (2, 0x2000),
        (2, u64::MAX - 8),
        (0, u64::MAX - 1),
    ] {
        machine.write(window, end, &[1, 2, 3, 4]);
        assert_eq!(machine.read(window, end, 4), [0xff; 4], "{window}");
    }
}

#[test]
fn scripts_ram_is_memory() {
    let mut machine = Machine::new();
    machine.write(2, 0x1ffc, &[1, 2, 3, 4]);
    assert_eq!(machine.read(2, 0x1ffc, 4), [1, 2, 3, 4]);
    machine.chip.reset_and_clear_ram();
    assert_eq!(machine.read(2, 0x1ffc, 4), [0; 4]);
}

#[test]
fn status_registers_cannot_be_written() {
    let mut machine = Machine::new();
    for register in [
        SSID, SBCL, DSTAT, SSTAT0, SSTAT1, SSTAT2, 0x18, 0x19, SIST0, SIST1, SIDL, STEST4, SBDL,
        SBC, 0xf0,
    ] {
        let before = machine.read8(register);
        machine.write8(register, !before);
        assert_eq!(machine.read8(register), before, "register {register:#x}");
    }
}

#[test]
fn all_scratch_and_address_registers_keep_what_is_written() {
    let mut machine = Machine::new();
    let scratch = (SCRATCHC..0xa0).step_by(4);
    for register in [
        DSA, TEMP, SCRATCHA, SCRATCHB, 0xa0, 0xa4, 0xa8, 0xac, 0xb0, 0xb4, PMJAD1, PMJAD2, RBC, UA,
        ESA, IA,
    ]
    .into_iter()
    .chain(scratch)
    {
        machine.write32(register, 0x0102_0300 | u32::from(register));
        assert_eq!(machine.read32(register), 0x0102_0300 | u32::from(register));
    }
}

#[test]
fn the_windows_addresses_show_in_the_scratch_registers_on_request() {
    let mut machine = Machine::new();
    machine.write32(SCRATCHA, 1);
    machine.write32(SCRATCHB, 2);
    machine.write8(CTEST2, 0x08);
    assert_eq!(
        (machine.read32(SCRATCHA), machine.read32(SCRATCHB)),
        (BARS.registers, BARS.ram)
    );
    machine.write8(CTEST2, 0x00);
    assert_eq!((machine.read32(SCRATCHA), machine.read32(SCRATCHB)), (1, 2));
}

#[test]
fn reading_ctest2_clears_the_signal() {
    let mut machine = Machine::new();
    machine.write8(ISTAT0, 0x20);
    assert_eq!(machine.read8(ISTAT0), 0x20);
    assert_eq!(machine.read8(CTEST2) & 0x40, 0x40);
    assert_eq!(machine.read8(CTEST2) & 0x40, 0);
    assert_eq!(machine.read8(ISTAT0), 0);
}

#[test]
fn the_semaphore_stays_and_the_interrupt_on_the_fly_is_cleared_by_a_one() {
    let mut machine = Machine::new();
    machine.write8(ISTAT0, 0x10);
    run(&mut machine, |p| p.int_fly());
    assert_eq!(machine.read8(ISTAT0), 0x15);
    assert!(machine.chip.irq_level());
    machine.write8(ISTAT0, 0x10);
    assert_eq!(machine.read8(ISTAT0), 0x15, "a zero does not clear it");
    machine.write8(ISTAT0, 0x14);
    assert_eq!(machine.read8(ISTAT0), 0x11);
    assert!(!machine.chip.irq_level(), "DIEN is clear");
}

#[test]
fn an_interrupt_on_the_fly_is_signalled_before_scripts_continue() {
    let mut machine = Machine::new();
    let mut program = Program::at(0x1000);
    for _ in 0..2 {
        program.int_fly().store(SCRATCHA, 1, WATCHED);
    }
    program.int(When::Always, 1);
    machine.write8(SCRATCHA, 0x55);
    machine.start(&program, 0x1000);
    assert_eq!(machine.peek(WATCHED, 1), [0x55]);
    assert_eq!(machine.world.interrupted, [0], "once, since it stays up");
    // No signal while the pin is masked.
    machine.write8(ISTAT0, 0x04);
    machine.write8(DCNTL, 0x02);
    machine.start(&program, 0x1000);
    assert_eq!(machine.read8(ISTAT0) & 0x04, 0x04);
    assert_eq!(machine.world.interrupted.len(), 1);
}

#[test]
fn the_interrupt_pin_follows_masks_and_the_two_switches() {
    let mut machine = Machine::new();
    run(&mut machine, |p| p);
    assert!(!machine.chip.irq_level());
    machine.write8(DIEN, 0x04);
    assert!(machine.chip.irq_level());
    machine.write8(DCNTL, 0x02);
    assert!(!machine.chip.irq_level());
    machine.write8(DCNTL, 0x00);
    machine.write8(ISTAT1, 0x01);
    assert!(!machine.chip.irq_level());
    machine.write8(ISTAT1, 0x00);
    assert!(machine.chip.irq_level());
    assert_eq!(machine.read8(DSTAT), 0x84);
    assert!(!machine.chip.irq_level());
}

#[test]
fn a_second_interrupt_waits_behind_the_first() {
    let mut machine = Machine::new();
    machine.write8(SIEN0, 0xff);
    machine.write8(SIEN1, 0xff);
    machine.write8(DIEN, 0x7f);
    machine.write8(ISTAT0, 0x80);
    assert_eq!(machine.read8(ISTAT0) & 0x03, 0x01);
    machine.write8(SCNTL1, 0x08);
    let pending = machine.read8(ISTAT0) & 0x03;
    assert_eq!(pending, 0x01, "the second level does not show");
    assert_eq!(machine.read8(SIST0), 0);
    assert_eq!(machine.read8(DSTAT), 0x90);
    assert_eq!(machine.read8(ISTAT0) & 0x03, 0x02, "now it does");
    assert!(machine.chip.irq_level());
    machine.expect_scsi(0x02, 0);
    assert!(!machine.chip.irq_level());
}

#[test]
fn an_interrupt_that_is_not_fatal_and_masked_shows_only_in_its_register() {
    let mut machine = ran(|p| p.wait_reselect("here").label("here"));
    machine.write8(STIME1, 0x01);
    machine.go();
    machine.now_ns += 125_000;
    machine.run();
    assert_eq!(machine.read8(ISTAT0) & 0x02, 0);
    assert_eq!(machine.read8(ISTAT1), 0x02, "still running");
    assert_eq!(machine.read8(SIST1), 0x02);
    assert_eq!(machine.read8(SIST1), 0x00);
}

#[test]
fn the_general_purpose_timer_takes_its_time() {
    let mut machine = Machine::new();
    machine.write8(SIEN1, 0x02);
    machine.write8(STIME1, 0x0b);
    machine.go();
    assert_eq!(machine.chip.timer_due_ns(), Some(1 + (125_000 << 10)));
    machine.now_ns = 125_000 << 10;
    machine.run();
    assert!(!machine.chip.irq_level());
    machine.now_ns += 1;
    machine.run();
    assert!(machine.chip.irq_level());
    machine.expect_scsi(0, 0x02);
    assert_eq!(machine.chip.timer_due_ns(), None);
    machine.write8(STIME1, 0x01);
    machine.write8(STIME1, 0x00);
    machine.go();
    assert_eq!(machine.chip.timer_due_ns(), None);
}

#[test]
fn the_abort_bit_stops_scripts_that_wait() {
    let mut machine = ran(|p| p.wait_reselect("here").label("here"));
    assert_eq!(machine.read8(ISTAT1), 0x02);
    machine.write8(ISTAT0, 0x80);
    assert_eq!(machine.read8(ISTAT1), 0x00);
    assert_eq!(machine.read8(DSTAT), 0x90);
    let dsp = machine.read32(DSP);
    assert_eq!(dsp, 0x1008, "behind the instruction that waited");
    machine.write8(ISTAT0, 0x00);
    assert_eq!(machine.read8(DSTAT), 0x80);
}

#[test]
fn manual_start_and_single_steps() {
    let mut machine = Machine::new();
    let mut program = Program::at(0x1000);
    program
        .register(7, 0, SCRATCHA, 1)
        .register(7, 0, SCRATCHA, 2)
        .int(When::Always, 3);
    machine.poke(0x1000, &program.bytes());
    machine.write8(DMODE, 0x01);
    machine.write8(DCNTL, 0x10);
    machine.write32(DSP, 0x1000);
    machine.go();
    assert_eq!(machine.read8(ISTAT1), 0, "MAN: writing DSP starts nothing");
    for step in 1..=2 {
        machine.write8(DCNTL, 0x14);
        machine.go();
        assert_eq!(machine.read8(SCRATCHA), step);
        assert_eq!(machine.read8(DSTAT), 0x88, "SSI");
    }
    machine.write8(DCNTL, 0x04);
    machine.go();
    machine.expect_int(3);
}
