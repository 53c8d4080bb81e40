//! The block operation and address of a command, as read from its CDB without checks, for statistics and tracing.

use block::Op;

use crate::cdb::Cdb;

/// The operation and address of a command that was not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpAndFirstLba {
    /// The operation.
    pub op: Op,
    /// The first logical block; 0 if the command has none, or several.
    pub lba: u64,
}

impl OpAndFirstLba {
    /// The medium access of a CDB. `None`: its operation code is not one of a command that accesses the medium.
    #[must_use]
    pub fn of_cdb(cdb: &[u8]) -> Option<Self> {
        let cdb = Cdb::new(cdb);
        let op = match cdb.opcode() {
            // READ, VERIFY
            0x08 | 0x28 | 0x88 | 0xa8 | 0x2f | 0x8f | 0xaf => Op::Read,
            // WRITE, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE
            0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae | 0x89 | 0x8b => Op::Write,
            // WRITE SAME
            0x41 | 0x93 => Op::WriteZeroes {
                unmap: cdb.bit(1, 3),
            },
            // SYNCHRONIZE CACHE
            0x35 | 0x91 => Op::Flush,
            // UNMAP
            0x42 => Op::Discard,
            _ => return None,
        };
        let lba = match op {
            Op::Discard => 0,
            _ => cdb.block_range().lba,
        };
        Some(OpAndFirstLba { op, lba })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_follows_from_the_operation_code() {
        let asked = |op, lba| Some(OpAndFirstLba { op, lba });
        let zeroes = Op::WriteZeroes { unmap: true };
        for (cdb, expected) in [
            (&[0x28, 0, 0, 0, 1, 2, 0, 0, 8, 0][..], asked(Op::Read, 258)),
            (&[0x0a, 0xe1, 0, 7, 1, 0], asked(Op::Write, 0x1_0007)),
            (&[0x41, 8, 0, 0, 0, 9, 0, 0, 1, 0], asked(zeroes, 9)),
            (&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], asked(Op::Flush, 0)),
            (&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], asked(Op::Discard, 0)),
            (&[0x12, 0, 0, 0, 36, 0], None),
            (&[], None),
        ] {
            assert_eq!(OpAndFirstLba::of_cdb(cdb), expected, "{cdb:x?}");
        }
    }
}
