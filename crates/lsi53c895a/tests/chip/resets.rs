//! Tests of resets and aborts while tasks are in flight, also with disks that keep memory in use for a while.

use lsi53c895a::chip::ResetScope;

use crate::assemble::{COMMAND, MSG_OUT, Program, STATUS, When};
use crate::driver::{BUFFERS, transfer};
use crate::machine::*;

/// A driver with so many reads in flight.
fn with_reads(count: u8) -> Driver {
    let mut driver = Driver::new(Machine::new());
    driver.machine.world.resets.clear();
    for i in 0..count {
        let block = u32::from(i);
        driver.submit(&transfer(0x28, 2, Some(i), block, 1, BUFFERS + 512 * block));
    }
    driver
}

#[test]
fn a_bus_reset_raises_an_interrupt_and_ends_all_tasks() {
    let mut driver = with_reads(4);
    let machine = &mut driver.machine;
    machine.write8(SCNTL1, 0x08);
    assert_eq!(machine.read8(SSTAT0) & 0x02, 0x02, "the line is up");
    assert_eq!((machine.read8(SBCL), machine.read8(SBDL)), (0, 0));
    machine.write8(SCNTL1, 0x00);
    machine.go();
    assert_eq!(machine.read8(SSTAT0) & 0x02, 0);
    assert_eq!(machine.world.aborts, 4);
    assert_eq!(machine.world.resets, [ResetScope::Bus]);
    assert!(machine.chip.irq_level());
    machine.expect_scsi(0x02, 0);
    assert_eq!(machine.read8(ISTAT1), 0, "SCRIPTS have stopped");

    // And life goes on.
    driver.restart();
    driver.submit(&transfer(0x28, 2, Some(9), 0, 1, BUFFERS));
    let id = driver.machine.world.running[0];
    driver.machine.finish(id);
    driver.expect_well();
    assert_eq!(driver.completions().len(), 1);
}

#[test]
fn a_bus_reset_without_tasks_is_reported_at_once() {
    let mut machine = Machine::new();
    machine.write8(SCNTL1, 0x08);
    machine.expect_scsi(0x02, 0);
    machine.write8(SCNTL1, 0x08);
    machine.expect_scsi(0, 0);
}

#[test]
fn a_bus_reset_is_not_reported_while_a_disk_still_writes_to_memory() {
    let mut driver = with_reads(2);
    driver.machine.world.holds_on = true;
    let running = driver.machine.world.running.clone();
    driver.machine.write8(SCNTL1, 0x08);
    driver.machine.write8(SCNTL1, 0x00);
    driver.machine.go();
    assert_eq!(driver.machine.read8(SIST0), 0);
    assert_eq!(driver.machine.chip.draining_task_count(), 2);
    driver.machine.finish(running[1]);
    assert_eq!(driver.machine.read8(SIST0), 0);
    driver.machine.finish(running[0]);
    assert_eq!(driver.machine.chip.draining_task_count(), 0);
    driver.machine.expect_scsi(0x02, 0);
    assert!(driver.completions().is_empty());
}

/// Also for programs that do not wait for the disconnection.
#[test]
fn the_bus_is_idle_until_the_disk_releases_memory() {
    const AT: u32 = 0x3e00;
    const MESSAGE: u32 = 0x3d00;
    const STATUS_BYTE: u32 = 0x3d40;
    let program = |rest: &dyn Fn(&mut Program) -> &mut Program| {
        let mut p = Program::at(AT);
        p.select_atn(2, "x").label("x");
        rest(&mut p);
        p.int(When::Always, 99);
        p
    };
    let reselection = program(&|p| {
        p.move_direct(MSG_OUT, 4, MESSAGE)
            .wait_reselect("came")
            .label("came")
    });
    let selection = program(&|p| {
        p.move_direct(MSG_OUT, 4, MESSAGE)
            .select_atn(5, "done")
            .label("done")
    });
    // Another command of the same tag aborts the first.
    let request = program(&|p| {
        p.move_direct(MSG_OUT, 3, MESSAGE)
            .move_direct(COMMAND, 10, MESSAGE + 0x10)
            .move_direct(STATUS, 1, STATUS_BYTE)
    });
    for program in [reselection, selection, request] {
        let mut driver = with_reads(2);
        driver.machine.world.holds_on = true;
        let running = driver.machine.world.running.clone();
        driver.machine.poke(MESSAGE, &[0xc0, 0x20, 1, 0x0d]);
        let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        driver.machine.poke(MESSAGE + 0x10, &read);
        driver.machine.poke(STATUS_BYTE, &[0xee]);
        driver.interrupt_with(&program);
        expect_int_later(&mut driver.machine);
        driver.machine.finish(running[1]);
        expect_int_later(&mut driver.machine);
        assert_eq!(driver.machine.peek(STATUS_BYTE, 1), [0xee]);
        driver.machine.finish(running[0]);
        driver.machine.expect_int(99);
    }
}

#[track_caller]
fn expect_int_later(machine: &mut Machine) {
    let found = (machine.read8(ISTAT0) & 0x03, machine.read8(ISTAT1));
    assert_eq!(found, (0, 0x02), "it waits");
}

#[test]
fn a_chip_reset_clears_all_state() {
    let mut driver = with_reads(3);
    let machine = &mut driver.machine;
    machine.write8(ISTAT0, 0x40);
    machine.go();
    assert_eq!(machine.world.aborts, 3);
    let found = [SCID, SIEN0, ISTAT1].map(|register| machine.read8(register));
    assert_eq!(found, [7, 0, 0]);
    assert!(!machine.chip.irq_level());
    assert_eq!(machine.chip.in_flight_task_count(), 0);
}

#[test]
fn a_reset_in_each_phase_leaves_a_chip_that_works() {
    use crate::assemble::{DATA_IN, MSG_IN, Program, STATUS};
    for steps in 1..=6 {
        for register in [SCNTL1, ISTAT0] {
            let mut machine = Machine::new();
            machine.poke(0x8000, &[0x80]);
            machine.poke(0x8010, &[0x12, 0, 0, 0, 36, 0]);
            let mut p = Program::at(0x1000);
            p.command(0, (1, 0x8000), (6, 0x8010));
            p.move_direct(DATA_IN, 36, 0x9000)
                .move_direct(STATUS, 1, 0x8020)
                .move_direct(MSG_IN, 1, 0x8021);
            p.int(When::Always, 99);
            let mut bytes = p.bytes();
            // Stops after so many instructions.
            let at = 8 * steps;
            bytes.splice(at..at + 8, Program::at(0).int(When::Always, 1).bytes());
            machine.poke(0x1000, &bytes);
            machine.write32(DSP, 0x1000);
            machine.go();
            machine.expect_int(1);
            machine.write8(register, if register == SCNTL1 { 0x08 } else { 0x40 });
            machine.write8(register, 0);
            machine.go();
            machine.read8(SIST0);
            assert_eq!(machine.read8(ISTAT0) & 0x08, 0, "disconnected");
            machine.start(&p, 0x1000);
            machine.expect_int(99);
        }
    }
}

#[test]
fn targets_are_notified_of_delivered_statuses() {
    let mut driver = with_reads(3);
    let running = driver.machine.world.running.clone();
    driver.machine.finish(running[1]);
    assert_eq!(driver.machine.world.released, [(running[1], true)]);
    driver.machine.finish_quietly(running[2], GOOD);
    driver.machine.write8(ISTAT0, 0x40);
    driver.machine.go();
    assert_eq!(driver.machine.world.released[1..], [(running[2], false)]);
    assert_eq!(driver.machine.world.aborts, 1, "and of the one that ran");
}
