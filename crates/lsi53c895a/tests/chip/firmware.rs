//! SeaBIOS and EDK2: one command at a time, no right to disconnect, no ATN, 16 or 32 bytes of command whatever it is, and
//! polling of DSTAT, SIST0 and SIST1.

use crate::machine::*;

const SCRIPT: u32 = 0x1000;
const MESSAGE: u32 = 0x2000;
const CDB: u32 = 0x2010;
const STATUS_BYTE: u32 = 0x2020;
const MESSAGE_IN: u32 = 0x2024;
const BUFFER: u32 = 0x4000;

/// Its template, filled in for a command. The data phase of a command without data is two empty words.
fn boot_command(machine: &mut Machine, target: u32, cdb: &[u8], data: u32, buffer: u32) {
    let mut whole = [0; 16];
    whole[..cdb.len()].copy_from_slice(cdb);
    machine.poke(CDB, &whole);
    machine.poke(MESSAGE, &[0x80]);
    machine.poke(STATUS_BYTE, &[0xff]);
    machine.poke(MESSAGE_IN, &[0xff; 3]);
    let script = [
        0x4000_0000 | target << 16,
        0,
        0x0600_0001,
        MESSAGE,
        0x0200_0010,
        CDB,
        0x8782_0000,
        0x18,
        0x0700_0002,
        MESSAGE_IN + 1,
        0x5000_0000,
        0,
        0x0700_0002,
        MESSAGE_IN + 1,
        data,
        buffer,
        0x0300_0001,
        STATUS_BYTE,
        0x0700_0001,
        MESSAGE_IN,
        0x9808_0000,
        0,
    ];
    let bytes: Vec<u8> = script
        .iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect();
    machine.poke(SCRIPT, &bytes);
    for (register, byte) in (DSP..).zip(SCRIPT.to_le_bytes()) {
        machine.write8(register, byte);
    }
    machine.go();
}

/// What it looks at in its loop: is it done, and well?
fn poll(machine: &mut Machine) -> Option<bool> {
    let (dstat, sist0, sist1) = (
        machine.read8(DSTAT),
        machine.read8(SIST0),
        machine.read8(SIST1),
    );
    if sist0 != 0 || sist1 != 0 {
        return Some(false);
    }
    (dstat & 0x04 != 0)
        .then(|| machine.peek(STATUS_BYTE, 1) == [0] && machine.peek(MESSAGE_IN, 1) == [0])
}

#[test]
fn seabios_finds_no_target_by_a_selection_timeout() {
    let mut machine = Machine::new();
    machine.world.present = vec![2];
    machine.write8(ISTAT0, 0x40);
    boot_command(
        &mut machine,
        1,
        &[0x12, 0, 0, 0, 36, 0],
        0x0100_0024,
        BUFFER,
    );
    assert_eq!(poll(&mut machine), Some(false));
    assert_eq!(
        machine.world.resets.len(),
        1,
        "by the chip's own reset, and no other"
    );
}

#[test]
fn seabios_sends_inquiry_and_test_unit_ready() {
    let mut machine = Machine::new();
    boot_command(
        &mut machine,
        2,
        &[0x12, 0, 0, 0, 36, 0],
        0x0100_0024,
        BUFFER,
    );
    assert_eq!(poll(&mut machine), Some(true));
    assert_eq!(machine.peek(BUFFER, 5), b"abcde");
    let task = machine.world.tasks.values().next().unwrap();
    assert_eq!(
        task.cdb,
        [0x12, 0, 0, 0, 36, 0],
        "as long as its group says"
    );

    // A null buffer and no bytes: the data phase of its template vanishes.
    boot_command(&mut machine, 2, &[0; 6], 0, 0);
    assert_eq!(poll(&mut machine), Some(true));
}

#[test]
fn seabios_reads_and_writes_while_the_bus_is_held_for_it() {
    let mut machine = Machine::new();
    boot_command(
        &mut machine,
        2,
        &[0x28, 0, 0, 0, 0, 9, 0, 0, 128, 0],
        0x0100_0000 | 65536,
        BUFFER,
    );
    assert_eq!(poll(&mut machine), None, "it waits for the disk");
    assert_eq!(machine.world.runs, [65536], "one request");
    let id = machine.world.running[0];
    assert_eq!(machine.world.task(id).segments.len(), 1);
    machine.finish(id);
    assert_eq!(poll(&mut machine), Some(true));
    assert_eq!(
        machine.peek(BUFFER, 65536),
        &machine.world.disk[9 * BLOCK..9 * BLOCK + 65536]
    );

    machine.poke(BUFFER, &[0x5a; 1024]);
    boot_command(
        &mut machine,
        2,
        &[0x2a, 0, 0, 0, 0, 3, 0, 0, 2, 0],
        1024,
        BUFFER,
    );
    assert_eq!(poll(&mut machine), None);
    let id = machine.world.running[0];
    machine.finish(id);
    assert_eq!(poll(&mut machine), Some(true));
    assert_eq!(machine.world.disk[3 * BLOCK..5 * BLOCK], [0x5a; 1024]);
}

#[test]
fn seabios_gets_a_phase_mismatch_when_it_reads_too_little() {
    let mut machine = Machine::new();
    boot_command(
        &mut machine,
        2,
        &[0x12, 0, 0, 0, 36, 0],
        0x0100_0010,
        BUFFER,
    );
    assert_eq!(poll(&mut machine), Some(false));
}

/// The program of EDK2's LsiScsiDxe, as far as it differs: 32 bytes of command, two for each message, and no data phase for a
/// command without data. It learns from CSBC how much was moved.
fn uefi_command(machine: &mut Machine, target: u32, cdb: &[u8], data: Option<u32>) -> u32 {
    let mut whole = [0; 32];
    whole[..cdb.len()].copy_from_slice(cdb);
    machine.poke(CDB, &whole);
    machine.poke(MESSAGE, &[0x80]);
    let (status, message) = (CDB + 32, CDB + 36);
    machine.poke(status, &[0xff]);
    machine.poke(message, &[0xff; 2]);
    let before = machine.read32(CSBC);
    let mut script = vec![0x4000_0000 | target << 16, 0];
    script.extend([0x0600_0001, MESSAGE, 0x0200_0020, CDB, 0x8782_0000, 0x18]);
    script.extend([0x0700_0002, message, 0x5000_0000, 0, 0x0700_0002, message]);
    if let Some(data) = data {
        script.extend([data, BUFFER]);
    }
    script.extend([0x0300_0001, status, 0x0700_0002, message, 0x9808_0000, 0]);
    let bytes: Vec<u8> = script
        .iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect();
    machine.poke(SCRIPT, &bytes);
    machine.write32(DSP, SCRIPT);
    machine.go();
    if let Some(id) = machine.world.running.first().copied() {
        machine.finish(id);
    }
    let (dstat, sist0, sist1) = (
        machine.read8(DSTAT),
        machine.read8(SIST0),
        machine.read8(SIST1),
    );
    assert_eq!((dstat & 0x04, sist0, sist1), (0x04, 0, 0));
    assert_eq!(machine.peek(status, 1), [0]);
    assert_eq!(machine.peek(message, 1), [0], "COMMAND COMPLETE");
    machine.read32(CSBC).wrapping_sub(before)
}

#[test]
fn commands_of_uefi_firmware_run_one_after_the_other() {
    let mut machine = Machine::new();
    machine.write8(ISTAT0, 0x40);
    assert_eq!(uefi_command(&mut machine, 2, &[0; 6], None), 0);
    let inquiry = [0x12, 0, 0, 0, 36, 0];
    let moved = uefi_command(&mut machine, 2, &inquiry, Some(0x0100_0024));
    assert_eq!(moved, 36);
    assert_eq!(machine.peek(BUFFER, 5), b"abcde");
    let read = [0x28, 0, 0, 0, 0, 9, 0, 0, 128, 0];
    let moved = uefi_command(&mut machine, 2, &read, Some(0x0100_0000 | 65536));
    assert_eq!(moved, 65536);
    assert_eq!(
        machine.peek(BUFFER, 65536),
        &machine.world.disk[9 * BLOCK..9 * BLOCK + 65536]
    );
    machine.poke(BUFFER, &[0x5a; 1024]);
    let write = [0x2a, 0, 0, 0, 0, 3, 0, 0, 2, 0];
    assert_eq!(uefi_command(&mut machine, 2, &write, Some(1024)), 1024);
    assert_eq!(machine.world.disk[3 * BLOCK..5 * BLOCK], [0x5a; 1024]);
}
