//! SCRIPTS as guests write them: mostly valid instructions with mostly valid addresses.

use lsi53c895a::chip::BarAddresses;

use crate::input::Input;

/// Where the chip's windows are.
pub const BARS: BarAddresses = BarAddresses {
    io: 0xc000,
    registers: 0xfe00_0000,
    ram: 0xfe01_0000,
};

/// Shared guest memory, from address 0.
pub const MEMORY: usize = 1 << 16;

/// Guest memory that is not shared.
pub const FAR: u64 = 0x4000_0000;
/// Its bytes.
pub const FAR_BYTES: usize = 1 << 14;

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
pub fn one_command(target: u8, command: u32, data: u32) -> Vec<u8> {
    let program = [
        // Select; IDENTIFY; the command; its data.
        0x4100_0000 | u32::from(target) << 16,
        0,
        0x0600_0001,
        MESSAGE,
        0x0200_0000 | command,
        COMMAND,
        0x0100_0000 | data,
        DATA,
        // Status, COMMAND COMPLETE, bus free, INT.
        0x0300_0001,
        ANSWER,
        0x0700_0001,
        ANSWER + 1,
        0x6000_0040,
        0,
        0x4800_0000,
        0,
        0x9808_0000,
        0x1234,
    ];
    program.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// An address, mostly of something.
pub fn address(input: &mut Input) -> u32 {
    let offset = u32::from(input.u16());
    match input.below(7) {
        0 | 1 => offset & !3,
        2 => offset,
        3 => BARS.registers + (offset & 0x3ff),
        4 => BARS.ram + (offset & 0x1fff),
        5 => 0x4000_0000 + (offset & 0x3fff),
        _ => offset << 16 | u32::from(input.u16()),
    }
}

/// A piece of a program: one instruction, or what a driver has for a step of a command.
pub fn piece(input: &mut Input) -> Vec<u32> {
    let kind = input.byte();
    let how = u32::from(input.byte());
    match kind % 20 {
        // Block moves: direct, indirect, by table.
        0 | 1 => vec![(how & 0x3f) << 24 | u32::from(input.u16()), address(input)],
        2 => vec![
            (how & 0x3f) << 24 | (input.u32() & 0x00ff_ffff),
            address(input),
        ],
        // Selection, disconnection, reselection, lines.
        3 => vec![
            0x4000_0000 | (how & 0x27) << 24 | (input.u32() & 0x000f_0748),
            address(input),
        ],
        4 => vec![0x4000_0000 | (how & 7) << 27, 0],
        5 => vec![
            0x5800_0000 | (how & 1) << 27 << 1 | u32::from(input.u16()) & 0x0748,
            0,
        ],
        // Arithmetic with registers.
        6 | 7 => vec![
            0x4000_0000 | (5 + how % 3) << 27 | (how >> 5) << 24 | (input.u32() & 0x00ff_ff80),
            0,
        ],
        // Jumps, calls, returns, interrupts.
        8 | 9 => vec![
            0x8000_0000 | (how & 3) << 27 | (how >> 2 & 7) << 24 | (input.u32() & 0x00bf_ffff),
            address(input),
        ],
        10 => vec![0x8008_0000, address(input)],
        // Memory to memory, to and from registers.
        11 => vec![
            0xc000_0000 | u32::from(input.u16()),
            address(input),
            address(input),
        ],
        12 => vec![
            0xe000_0000
                | (how & 3) << 24
                | (how >> 2 & 1) << 28
                | u32::from(input.byte()) << 16
                | (1 + (how >> 6)),
            address(input),
        ],
        // Select, a message and a command.
        13 | 14 => {
            let target = how & 0xf;
            let message_bytes = [1, 3, 3, 6][how as usize >> 4 & 3];
            vec![
                0x4100_0000 | target << 16,
                0,
                0x0600_0000 | message_bytes,
                MESSAGE,
                0x0200_0000 | 10,
                COMMAND,
            ]
        }
        15 => vec![(how & 1) << 24 | u32::from(input.u16()), address(input)],
        // Status, and COMMAND COMPLETE.
        16 => vec![
            0x0300_0001,
            ANSWER,
            0x0700_0001,
            ANSWER + 1,
            0x6000_0040,
            0,
            0x4800_0000,
            0,
        ],
        // A message, perhaps SAVE DATA POINTER and DISCONNECT.
        17 => vec![0x0700_0001 + (how & 1), ANSWER + 4, 0x6000_0040, 0],
        // Wait for the targets: reselection, IDENTIFY and perhaps a tag.
        18 => vec![
            0x5000_0000,
            address(input),
            0x0700_0001,
            ANSWER + 8,
            0x6000_0040,
            0,
        ],
        _ => vec![input.u32(), input.u32()],
    }
}

/// A program that sends a command of six to sixteen bytes with a tag to target 0, takes a block of data, and lets
/// the target disconnect.
pub const TAGGED: [u32; 16] = [
    0x4100_0000,
    0,
    0x0600_0003,
    MESSAGE,
    0x0200_000a,
    COMMAND,
    0x0100_0200,
    0x8000,
    0x0700_0002,
    ANSWER + 4,
    0x6000_0040,
    0,
    0x4800_0000,
    0,
    0x9808_0000,
    0x77,
];

/// What a driver would write into [`MESSAGE`] and [`COMMAND`]: IDENTIFY with or without more, and a command.
pub fn command(input: &mut Input) -> ([u8; 8], [u8; 16]) {
    let identify = 0x80 | input.byte() & 0x47;
    let mut message = [
        identify,
        0x20 + input.byte() % 3,
        input.byte() & 0x0f,
        0,
        0,
        0,
        0,
        0,
    ];
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
