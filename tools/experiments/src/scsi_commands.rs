//! SCSI commands that the clients of both adapters send.

use bench::Error;
use bench::client::Kind;

/// Where the address of a block stands in READ (10) and WRITE (10), as a big-endian word.
pub(crate) const LBA_AT: usize = 2;

/// READ (10) or WRITE (10) at block 0 (SBC-4, 5.13 and 5.40).
pub(crate) fn transfer_cdb(kind: Kind, blocks: u16) -> [u8; 10] {
    let opcode = if kind == Kind::Write { 0x2a } else { 0x28 };
    let [high, low] = blocks.to_be_bytes();
    [opcode, 0, 0, 0, 0, 0, 0, high, low, 0]
}

/// A command that did not end with GOOD status.
#[cold]
pub(crate) fn failed(status: u32) -> Error {
    Error::Requests(format!("a SCSI command failed: status {status:#x}"))
}
