//! Classes of bugs that were published of other implementations of this chip, one test each.

use lsi53c895a::chip::RunOutcome;

use crate::assemble::{ACK, ATN, DATA_IN, MSG_IN, MSG_OUT, Program, When};
use crate::machine::*;

const AT: u32 = 0x1000;
const MESSAGE: u32 = 0x8000;
const CDB: u32 = 0x8010;

/// Puts a program into memory, and tells the chip to run it; it has not begun.
fn load(machine: &mut Machine, base: u32, write: impl FnOnce(&mut Program) -> &mut Program) {
    let mut program = Program::at(base);
    write(&mut program);
    machine.poke(base, &program.bytes());
    machine.write32(DSP, base);
}

/// A READ(10) of so many blocks, to be sent by a program.
fn prepare_read(machine: &mut Machine, message: &[u8], blocks: u8) {
    machine.poke(MESSAGE, message);
    machine.poke(CDB, &[0x28, 0, 0, 0, 0, 0, 0, 0, blocks, 0]);
}

/// CVE-2018-18849: a length of the guest's reached beyond the buffer for messages.
#[test]
fn cve_2018_18849_messages_of_any_length_stay_within_their_buffers() {
    for len in [1, 8, 31, 32, 33, 255, 4096, 0xff_ffff] {
        for fill in [0x01, 0x04, 0x09, 0x20, 0xff] {
            let mut machine = Machine::new();
            machine.limit = u32::MAX;
            machine.world.memory[MESSAGE as usize..].fill(fill);
            load(&mut machine, AT, |p| {
                p.select_atn(0, "x")
                    .label("x")
                    .move_direct(MSG_OUT, len, MESSAGE)
                    .move_direct(MSG_IN, len, 0x2000)
                    .int(When::Always, 99)
            });
            machine.go();
        }
    }
    // An extended message that says it is as long as can be, cut short.
    let mut machine = Machine::new();
    machine.poke(MESSAGE, &[0xc0, 1, 0, 3, 1]);
    load(&mut machine, AT, |p| {
        p.select_atn(0, "x")
            .label("x")
            .move_direct(MSG_OUT, 5, MESSAGE)
            .int(When::Phase(MSG_OUT), 1)
    });
    machine.go();
    machine.expect_int(1);
}

/// CVE-2019-12068: a program that never ends held the host's thread.
#[test]
fn cve_2019_12068_a_program_that_never_ends_lets_others_run() {
    for is_empty in [false, true] {
        let mut machine = Machine::new();
        load(&mut machine, AT, |p| match is_empty {
            true => p.raw(&[0; 4]),
            false => p.label("loop").jump(When::Always, "loop"),
        });
        for _ in 0..3 {
            assert_eq!(machine.run(), RunOutcome::InVain);
            assert!(machine.chip.wants_run());
        }
        // And it can be stopped.
        machine.write8(ISTAT0, 0x80);
        assert_eq!(machine.run(), RunOutcome::Idle);
        assert_eq!(machine.read8(DSTAT), 0x90);
    }
    // One instruction that moves much is no way around it.
    let mut machine = Machine::new();
    machine.limit = 10;
    load(&mut machine, AT, |p| {
        p.copy(0x8_0000, 0x1_0000, 0x1_0000).int(When::Always, 99)
    });
    let mut runs = 1;
    while machine.run() != RunOutcome::Idle {
        runs += 1;
    }
    assert!(runs > 10, "{runs}");
    machine.expect_int(99);
}

/// CVE-2022-0216: the current request was cancelled twice, and used after it was freed.
#[test]
fn cve_2022_0216_a_task_that_is_aborted_twice_is_aborted_once() {
    for aborts in [
        &[0x06, 0x06][..],
        &[0x0d, 0x0d],
        &[0x06, 0x0c, 0x0e, 0x0d, 0x17],
        &[0x20, 1, 0x0d, 0x06],
    ] {
        let mut machine = Machine::new();
        machine.world.holds_on = true;
        prepare_read(&mut machine, &[0xc0], 1);
        machine.poke(0x8020, aborts);
        load(&mut machine, AT, |p| {
            p.command(0, (1, MESSAGE), (10, CDB))
                .move_direct(DATA_IN, 100, 0x9000)
                .set(ATN)
                .int(When::NotPhase(MSG_OUT), 1)
                .move_direct(MSG_OUT, aborts.len(), 0x8020)
                .clear(ACK | ATN)
                .wait_disconnect()
                .int(When::Always, 99)
        });
        machine.go();
        machine.expect_int(99);
        // The fake disk would have refused a second abort.
        let found = (machine.world.aborts, machine.chip.in_flight_task_count());
        assert_eq!(found, (1, 0), "{aborts:x?}");
    }
}

/// CVE-2023-0330: DMA to the chip's own registers re-entered it until the stack was full.
#[test]
fn cve_2023_0330_transfers_to_the_chips_own_registers_do_not_enter_it_again() {
    // A memory move onto DSP that starts the same memory move again.
    let mut machine = Machine::new();
    machine.poke32(0x8000, AT);
    load(&mut machine, AT, |p| {
        p.copy(4, 0x8000, BARS.registers + u32::from(DSP))
            .int(When::Always, 1)
    });
    for _ in 0..3 {
        assert_eq!(machine.run(), RunOutcome::InVain);
    }
    // The same as data of a command, to every register and the RAM with the program in it.
    let registers = [BARS.registers, BARS.registers + 0x380];
    for target in registers.into_iter().chain([BARS.ram, BARS.ram + 0x1f00]) {
        for base in [AT, BARS.ram + 0x100] {
            let mut machine = Machine::new();
            prepare_read(&mut machine, &[0x80], 32);
            load(&mut machine, base, |p| {
                p.command(0, (1, MESSAGE), (10, CDB))
                    .move_direct(DATA_IN, 16384, target)
                    .move_direct(MSG_IN, 1, BARS.registers + u32::from(ISTAT0))
                    .int(When::Always, 99)
            });
            for _ in 0..50 {
                machine.run();
                machine.answer_memory(true);
                if let Some(id) = machine.world.running.first().copied() {
                    machine.finish_quietly(id, GOOD);
                }
            }
        }
    }
}

/// CVE-2024-6519: a transfer that reset the chip freed what the transfer used.
#[test]
fn cve_2024_6519_a_transfer_may_reset_the_chip_it_runs_on() {
    for (register, value) in [(ISTAT0, 0x40), (SCNTL1, 0x08), (ISTAT0, 0x80)] {
        let own = BARS.registers + u32::from(register);
        // By a memory move, longer than the register.
        let mut machine = Machine::new();
        machine.world.memory[0x8000..0x9000].fill(value);
        load(&mut machine, AT, |p| {
            p.copy(64, 0x8000 + (own & 3), own).int(When::Always, 1)
        });
        machine.go();
        assert_eq!(machine.read8(ISTAT1), 0);

        // By the data of a read, as it is written back, and by a message; each with the task at its heels.
        for (identify, data, message) in [(0x80, BARS.registers, 0x9000), (0xc0, 0x9000, own)] {
            let mut machine = Machine::new();
            machine.world.holds_on = true;
            machine.world.disk[..BLOCK].fill(value);
            prepare_read(&mut machine, &[identify, 0x20, 1], 1);
            load(&mut machine, AT, |p| {
                p.command(0, (3, MESSAGE), (10, CDB))
                    .move_direct(DATA_IN, 512, data)
                    .move_direct(MSG_IN, 2, message)
                    .wait_disconnect()
                    .int(When::Always, 99)
            });
            machine.go();
            while let Some(id) = machine.world.running.first().copied() {
                machine.finish(id);
            }
            assert_eq!(machine.chip.in_flight_task_count(), 0);
            machine.write8(ISTAT0, 0x40);
            machine.go();
            assert_eq!(machine.chip.in_flight_task_count(), 0);
        }
    }
    // The CPU resets the chip while a transfer waits for memory, and while a disk writes to it.
    let mut machine = Machine::new();
    machine.write32(DSP, FAR);
    machine.run();
    machine.chip.reset_and_clear_ram();
    machine.go();
    assert_eq!(machine.read8(ISTAT1), 0);
}
