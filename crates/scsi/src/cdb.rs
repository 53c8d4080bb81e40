//! A command descriptor block: its bytes, the check of its unused bits, and the fields that commands for blocks have in common.

use crate::bytes::{be_number, be16, be32, be64, byte};
use crate::sense::Sense;

/// The longest CDB that any of our commands has.
pub(crate) const MAX_CDB_BYTES: usize = 16;

pub(crate) const INQUIRY: u8 = 0x12;

/// The LUN field that SCSI-2 has in the second byte of each command.
const SCSI_2_LUN: u8 = 0xe0;

/// A copy of the bytes, padded with zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cdb {
    bytes: [u8; MAX_CDB_BYTES],
    /// The number of bytes that were received.
    len: usize,
}

impl Cdb {
    /// Copies a CDB of any length, of which at most 16 bytes are kept.
    pub fn new(from: &[u8]) -> Self {
        let len = from.len().min(MAX_CDB_BYTES);
        let mut bytes = [0; MAX_CDB_BYTES];
        bytes[..len].copy_from_slice(&from[..len]);
        if bytes[0] == INQUIRY {
            // Linux sets this field before it knows the version of the target, if that has no LUN 0.
            bytes[1] &= !SCSI_2_LUN;
        }
        Cdb { bytes, len }
    }

    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// The service action of commands that have one.
    pub fn service_action(&self) -> u8 {
        self.bytes[1] & 0x1f
    }

    pub fn byte(&self, at: usize) -> u8 {
        byte(&self.bytes, at)
    }

    pub fn bit(&self, at: usize, bit: u8) -> bool {
        self.byte(at) & 1 << bit != 0
    }

    pub fn be16(&self, at: usize) -> u16 {
        be16(&self.bytes, at)
    }

    pub fn be32(&self, at: usize) -> u32 {
        be32(&self.bytes, at)
    }

    pub fn be64(&self, at: usize) -> u64 {
        be64(&self.bytes, at)
    }

    /// Refuses a CDB that is too short, or has bits set that the command does not use. `mask` has the used bits, and is as
    /// long as the command.
    pub fn check_len_and_unused_bits(&self, mask: &[u8]) -> Result<(), Sense> {
        if self.len < mask.len() {
            return Err(Sense::invalid_cdb_field(
                crate::bytes::saturated_u16(self.len),
                None,
            ));
        }
        for (at, (byte, mask)) in (0..).zip(self.bytes.iter().zip(mask)).skip(1) {
            let extra = byte & !mask;
            if extra != 0 {
                let bit = u8::try_from(extra.ilog2()).unwrap_or(0);
                return Err(Sense::invalid_cdb_field(at, Some(bit)));
            }
        }
        Ok(())
    }

    /// First block and number of blocks of the command. Their position depends on the length of the command.
    pub fn block_range(&self) -> BlockRange {
        let bytes = &self.bytes;
        let (lba, blocks) = match self.opcode() >> 5 {
            0 => {
                let lba = be_number(bytes, 1, 3) & 0x1f_ffff;
                let blocks = match self.byte(4) {
                    0 => 256,
                    count => u64::from(count),
                };
                (lba, blocks)
            }
            4 => (be_number(bytes, 2, 8), be_number(bytes, 10, 4)),
            5 => (be_number(bytes, 2, 4), be_number(bytes, 6, 4)),
            _ => (be_number(bytes, 2, 4), be_number(bytes, 7, 2)),
        };
        BlockRange { lba, blocks }
    }

    /// The byte in which the number of blocks begins.
    pub fn block_count_offset(&self) -> u16 {
        match self.opcode() >> 5 {
            0 => 4,
            4 => 10,
            5 => 6,
            _ => 7,
        }
    }

    /// FORCE UNIT ACCESS, in commands that have it.
    pub fn has_fua(&self) -> bool {
        self.bit(1, 3)
    }
}

/// Some blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub lba: u64,
    pub blocks: u64,
}
