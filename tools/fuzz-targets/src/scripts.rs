//! SCRIPTS as guests write them: mostly valid instructions with mostly valid addresses.

use lsi_driver::assemble::{ACK, DATA_IN, MSG_IN, Program, STATUS, When};
use test_support::lsi_chip::{BARS, FAR, FAR_BYTES};

use crate::input::Input;

/// Shared guest memory, from address 0.
pub const MEMORY: usize = 1 << 16;

const _: () = assert!(FAR_BYTES == 1 << 16, "16 bits address all of it");

/// Where programs stand.
pub const PROGRAMS: [u32; 2] = [0, BARS.ram];

/// Where messages to targets, commands, and what comes back are put by [`piece`]s.
pub const MESSAGE: u32 = 0xf000;
/// See [`MESSAGE`].
pub const COMMAND: u32 = 0xf010;
/// See [`MESSAGE`].
pub const ANSWER: u32 = 0xf030;

/// Where [`one_command`] has its data.
pub const DATA: u32 = 0x1000;

/// A program that has a target carry one command out: `command` bytes of it, and `data` bytes that come back. It ends by
/// INT with 0x1234.
pub fn one_command(target: u32, command: usize, data: usize) -> Vec<u8> {
    let mut program = Program::at(0x100);
    program
        .command(target, (1, MESSAGE), (command, COMMAND))
        .move_direct(DATA_IN, data, DATA)
        .move_direct(STATUS, 1, ANSWER)
        .move_direct(MSG_IN, 1, ANSWER + 1)
        .clear(ACK)
        .wait_disconnect()
        .int(When::Always, 0x1234);
    program.bytes()
}

/// A program that sends a command with a tag to target 0, takes a block of data, and lets the target disconnect.
pub fn tagged_command() -> Vec<u8> {
    let mut program = Program::at(0x200);
    program
        .command(0, (3, MESSAGE), (10, COMMAND))
        .move_direct(DATA_IN, 512, 0x8000)
        .move_direct(MSG_IN, 2, ANSWER + 4)
        .clear(ACK)
        .wait_disconnect()
        .int(When::Always, 0x77);
    program.bytes()
}

/// An address, mostly of something.
pub fn address(input: &mut Input) -> u32 {
    let offset = u32::from(input.u16());
    match input.below(7) {
        0 | 1 => offset & !3,
        2 => offset,
        3 => BARS.registers + (offset & 0x3ff),
        4 => BARS.ram + (offset & 0x1fff),
        5 => FAR + offset,
        _ => offset << 16 | u32::from(input.u16()),
    }
}

/// A piece of a program: one instruction, or what a driver has for a step of a command.
pub fn piece(input: &mut Input) -> Vec<u32> {
    const END_OF_MESSAGE: [u32; 2] = [0x6000_0040, 0];
    let kind = input.byte();
    let how = u32::from(input.byte());
    let mut words = match kind % 20 {
        // Block moves: direct, indirect, by table.
        0 | 1 => vec![(how & 0x3f) << 24 | u32::from(input.u16())],
        2 => vec![(how & 0x3f) << 24 | (input.u32() & 0x00ff_ffff)],
        // Selection, disconnection, reselection, lines.
        3 => vec![0x4000_0000 | (how & 0x27) << 24 | (input.u32() & 0x000f_0748)],
        4 => return vec![0x4000_0000 | (how & 7) << 27, 0],
        5 => {
            let lines = u32::from(input.u16()) & 0x0748;
            return vec![0x5800_0000 | (how & 1) << 27 << 1 | lines, 0];
        }
        // Arithmetic with registers.
        6 | 7 => {
            let what = (5 + how % 3) << 27 | (how >> 5) << 24;
            return vec![0x4000_0000 | what | (input.u32() & 0x00ff_ff80), 0];
        }
        // Jumps, calls, returns, interrupts.
        8 | 9 => {
            let what = (how & 3) << 27 | (how >> 2 & 7) << 24;
            vec![0x8000_0000 | what | (input.u32() & 0x00bf_ffff)]
        }
        10 => vec![0x8008_0000],
        // Memory to memory, to and from registers.
        11 => vec![0xc000_0000 | u32::from(input.u16()), address(input)],
        12 => {
            let what = (how & 3) << 24 | (how >> 2 & 1) << 28;
            let register = u32::from(input.byte()) << 16;
            vec![0xe000_0000 | what | register | (1 + (how >> 6))]
        }
        // Select, a message and a command.
        13 | 14 => {
            let message_bytes = [1, 3, 3, 6][how as usize >> 4 & 3];
            let mut program = Program::at(0);
            program.command(how & 0xf, (message_bytes, MESSAGE), (10, COMMAND));
            program.words[1] = 0;
            return program.words;
        }
        15 => vec![(how & 1) << 24 | u32::from(input.u16())],
        // Status, and COMMAND COMPLETE.
        16 => {
            let moves = [0x0300_0001, ANSWER, 0x0700_0001, ANSWER + 1];
            return [&moves, &END_OF_MESSAGE[..], &[0x4800_0000, 0]].concat();
        }
        // A message, perhaps SAVE DATA POINTER and DISCONNECT.
        17 => return [&[0x0700_0001 + (how & 1), ANSWER + 4], &END_OF_MESSAGE[..]].concat(),
        // Wait for the targets: reselection, IDENTIFY and perhaps a tag.
        18 => {
            let wait = [0x5000_0000, address(input), 0x0700_0001, ANSWER + 8];
            return [&wait, &END_OF_MESSAGE[..]].concat();
        }
        _ => return vec![input.u32(), input.u32()],
    };
    words.push(address(input));
    words
}

/// What a driver would write into [`MESSAGE`] and [`COMMAND`]: IDENTIFY with or without more, and a command.
pub fn command(input: &mut Input) -> ([u8; 8], [u8; 16]) {
    let identify = 0x80 | input.byte() & 0x47;
    let mut message = [0; 8];
    message[..3].copy_from_slice(&[identify, 0x20 + input.byte() % 3, input.byte() & 0x0f]);
    match input.below(6) {
        // SDTR, WDTR, PPR.
        0 => message[1..6].copy_from_slice(&[1, 3, 1, input.byte(), input.byte()]),
        1 => message[1..5].copy_from_slice(&[1, 2, 3, input.byte()]),
        2 => {
            message[1..5].copy_from_slice(&[1, 6, 4, input.byte()]);
            message[5..].copy_from_slice(&input.array::<3>());
        }
        3 => message[1] = input.byte(),
        _ => {}
    }
    let opcode = match input.byte() {
        byte @ 0..=63 => [0x28, 0x2a, 0x12, 0x03, 0x35, 0x00, 0x25, 0x08][usize::from(byte) % 8],
        byte => byte,
    };
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    // Small numbers in the fields that most commands have.
    cdb[4] = input.byte();
    cdb[5] = input.byte();
    cdb[8] = input.byte() & 0x0f;
    if input.flag() {
        cdb[1..].copy_from_slice(&input.array::<15>());
    }
    (message, cdb)
}
