//! SeaBIOS and EDK2: one command at a time, no right to disconnect, no ATN, 16 or 32 bytes of command whatever it is, and
//! polling of DSTAT, SIST0 and SIST1.

use crate::machine::*;

const SCRIPT: u32 = 0x1000;
const MESSAGE: u32 = 0x2000;
const CDB: u32 = 0x2010;
const STATUS_BYTE: u32 = 0x2030;
const MESSAGE_IN: u32 = 0x2034;
const BUFFER: u32 = 0x4000;

/// What differs in their programs.
struct Firmware {
    cdb_bytes: u32,
    /// Where messages go that come before the data.
    early_message: u32,
    /// Bytes of the last message that it asks for.
    last_message: u32,
}

const SEABIOS: Firmware = Firmware {
    cdb_bytes: 16,
    early_message: MESSAGE_IN + 1,
    last_message: 1,
};

/// LsiScsiDxe of EDK2.
const EDK2: Firmware = Firmware {
    cdb_bytes: 32,
    early_message: MESSAGE_IN,
    last_message: 2,
};

/// SeaBIOS has two empty words as the data phase of a command without data, and EDK2 nothing.
fn start(machine: &mut Machine, firmware: &Firmware, target: u32, cdb: &[u8], data: &[u32]) {
    let early = firmware.early_message;
    let mut whole = [0; 32];
    whole[..cdb.len()].copy_from_slice(cdb);
    machine.poke(CDB, &whole);
    machine.poke(MESSAGE, &[0x80]);
    machine.poke(STATUS_BYTE, &[0xff; 7]);
    let mut script = vec![0x4000_0000 | target << 16, 0, 0x0600_0001, MESSAGE];
    script.extend([0x0200_0000 | firmware.cdb_bytes, CDB, 0x8782_0000, 0x18]);
    script.extend([0x0700_0002, early, 0x5000_0000, 0, 0x0700_0002, early]);
    script.extend(data);
    script.extend([0x0300_0001, STATUS_BYTE]);
    script.extend([0x0700_0000 | firmware.last_message, MESSAGE_IN]);
    script.extend([0x9808_0000, 0]);
    let bytes: Vec<u8> = script.iter().flat_map(|word| word.to_le_bytes()).collect();
    machine.poke(SCRIPT, &bytes);
    for (register, byte) in (DSP..).zip(SCRIPT.to_le_bytes()) {
        machine.write8(register, byte);
    }
    machine.go();
}

/// What it looks at in its loop: is it done, and well?
fn poll(machine: &mut Machine) -> Option<bool> {
    let [dstat, sist0, sist1] = [DSTAT, SIST0, SIST1].map(|register| machine.read8(register));
    if sist0 != 0 || sist1 != 0 {
        return Some(false);
    }
    (dstat & 0x04 != 0)
        .then(|| machine.peek(STATUS_BYTE, 1) == [0] && machine.peek(MESSAGE_IN, 1) == [0])
}

const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];

#[test]
fn seabios_finds_no_target_by_a_selection_timeout() {
    let mut machine = Machine::new();
    machine.world.present = vec![2];
    machine.write8(ISTAT0, 0x40);
    start(&mut machine, &SEABIOS, 1, &INQUIRY, &[0x0100_0024, BUFFER]);
    assert_eq!(poll(&mut machine), Some(false));
    let resets = machine.world.resets.len();
    assert_eq!(resets, 1, "by the chip's own reset, and no other");
}

#[test]
fn seabios_gets_a_phase_mismatch_when_it_reads_too_little() {
    let mut machine = Machine::new();
    start(&mut machine, &SEABIOS, 2, &INQUIRY, &[0x0100_0010, BUFFER]);
    assert_eq!(poll(&mut machine), Some(false));
}

#[test]
fn commands_of_firmware_run_one_after_the_other() {
    for (firmware, no_data) in [(SEABIOS, &[0, 0][..]), (EDK2, &[])] {
        let mut machine = Machine::new();
        machine.write8(ISTAT0, 0x40);
        // The bytes that were moved, as EDK2 learns them from CSBC.
        let mut moved = |cdb: &[u8], data: &[u32]| {
            let before = machine.read32(CSBC);
            start(&mut machine, &firmware, 2, cdb, data);
            if let Some(id) = machine.world.running.first().copied() {
                assert_eq!(poll(&mut machine), None, "it waits for the disk");
                assert_eq!(machine.world.task(id).segments.len(), 1);
                machine.finish(id);
            }
            assert_eq!(poll(&mut machine), Some(true), "{cdb:x?}");
            let task = machine.world.tasks.values().last().unwrap();
            assert_eq!(task.cdb, cdb, "as long as its group says");
            machine.read32(CSBC).wrapping_sub(before)
        };
        assert_eq!(moved(&[0; 6], no_data), 0);
        assert_eq!(moved(&INQUIRY, &[0x0100_0024, BUFFER]), 36);
        let read = [0x28, 0, 0, 0, 0, 9, 0, 0, 128, 0];
        assert_eq!(moved(&read, &[0x0101_0000, BUFFER + 0x1000]), 65536);
        let write = [0x2a, 0, 0, 0, 0, 3, 0, 0, 2, 0];
        assert_eq!(moved(&write, &[1024, BUFFER + 0x1000]), 1024);
        assert_eq!(machine.peek(BUFFER, 5), b"abcde");
        let disk = &machine.world.disk;
        assert_eq!(
            machine.peek(BUFFER + 0x1000, 65536),
            disk[9 * BLOCK..9 * BLOCK + 65536]
        );
        assert_eq!(disk[3 * BLOCK..5 * BLOCK], disk[9 * BLOCK..11 * BLOCK]);
        assert_eq!(machine.world.runs, [0, 36, 65536, 1024]);
    }
}
