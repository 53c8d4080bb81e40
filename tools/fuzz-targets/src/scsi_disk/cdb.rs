//! CDBs as initiators write them.

use crate::input::Input;

/// All operation codes that there are.
const OPCODES: [u8; 42] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2e, 0x2f,
    0x34, 0x35, 0x41, 0x42, 0x4d, 0x55, 0x56, 0x57, 0x5a, 0x5e, 0x5f, 0x88, 0x89, 0x8a, 0x8b, 0x8e,
    0x8f, 0x90, 0x91, 0x93, 0x9e, 0xa0, 0xa3, 0xa8, 0xaa, 0xae,
];

/// Those that may change the disk.
pub const WRITERS: [u8; 13] = [
    0x0a, 0x2a, 0x2e, 0x41, 0x42, 0x89, 0x8a, 0x8b, 0x8e, 0x93, 0xaa, 0xae, 0x35,
];

/// A command that mostly means something.
pub(crate) fn cdb(input: &mut Input) -> Vec<u8> {
    let opcode = match input.byte() {
        byte @ 0..=251 => OPCODES[usize::from(byte) % OPCODES.len()],
        byte => byte,
    };
    let mut cdb = vec![opcode];
    cdb.extend(input.array::<15>());
    let len = match opcode >> 5 {
        0 => 6,
        1 | 2 => 10,
        5 => 12,
        _ => 16,
    };
    cdb.truncate(len);
    // Small numbers in the upper bytes of addresses and counts.
    if input.byte() & 7 != 0 && !matches!(opcode, 0x5e | 0x5f | 0xa3 | 0x9e) {
        let zero: &[std::ops::Range<usize>] = match len {
            6 => &[],
            10 => &[2..4, 7..8],
            12 => &[2..4, 6..8],
            _ => &[2..8, 10..12],
        };
        for range in zero {
            cdb[range.clone()].fill(0);
        }
    }
    // CONTROL is mostly zero, and so is the group.
    if input.byte() & 7 != 0 {
        cdb[len - 1] = 0;
        match len {
            10 => cdb[6] = 0,
            12 => cdb[10] = 0,
            16 => cdb[14] = 0,
            _ => {}
        }
    }
    cdb
}
