//! Parts common to all SCSI disks: commands, and the enquiries before the first one that counts.

use std::time::{Duration, Instant};

use super::commands::Commands;
use super::queue::Queue;
use super::requests::Kind;
use crate::error::{Error, Result};

/// For one of these questions.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A disk may have so many things to complain of, one command each (SAM-5, 5.14).
const MAX_ATTENTIONS: usize = 8;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const READ_CAPACITY_10: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CAPACITY_BYTES: usize = 8;

/// Where the address of a block stands in READ (10) and WRITE (10), as a big-endian word.
pub const LBA_AT: usize = 2;

/// READ (10) or WRITE (10) at block 0 (SBC-4, 5.13 and 5.40).
#[must_use]
pub fn transfer_cdb(kind: Kind, blocks: u16) -> [u8; 10] {
    let opcode = match kind {
        Kind::Read => 0x28,
        Kind::Write => 0x2a,
        Kind::Flush => 0x35,
    };
    let blocks = if kind == Kind::Flush { 0 } else { blocks };
    let [high, low] = blocks.to_be_bytes();
    [opcode, 0, 0, 0, 0, 0, 0, high, low, 0]
}

/// Requests that carry SCSI commands.
pub trait ScsiCommands: Commands {
    /// Makes slot 0 this command, which reads no more than a slot's data. Returns its head.
    fn ask(&mut self, cdb: &[u8], bytes: u32) -> u16;

    /// The status of the command with this head, which is over.
    ///
    /// # Errors
    /// When there is none, or it did not reach the disk.
    fn status(&self, head: u32) -> Result<u8>;
}

/// What a disk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Its size.
    pub bytes: u64,
    /// Of a block.
    pub block_bytes: u32,
}

/// Hears what the disk has to complain of, and asks for its size. Nothing else is in flight.
///
/// # Errors
/// [`Error::Requests`] when it does not answer, or not well.
pub fn introduce(queue: &mut impl Queue, commands: &mut impl ScsiCommands) -> Result<Capacity> {
    queue.suppress_calls();
    for _ in 0..MAX_ATTENTIONS {
        if carry_out(queue, commands, &TEST_UNIT_READY, 0)? == GOOD {
            break;
        }
    }
    match carry_out(queue, commands, &READ_CAPACITY_10, CAPACITY_BYTES)? {
        GOOD => {}
        CHECK_CONDITION => return Err(unable("answers READ CAPACITY with CHECK CONDITION")),
        status => {
            return Err(unable(&format!(
                "answers READ CAPACITY with status {status:#x}"
            )));
        }
    }
    let word = commands.data(0)[0].load(std::sync::atomic::Ordering::Relaxed);
    let bytes = word.to_ne_bytes();
    let [last, block_bytes] = [0, 4]
        .map(|at| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
    Ok(Capacity {
        bytes: (u64::from(last) + 1) * u64::from(block_bytes),
        block_bytes,
    })
}

fn carry_out(
    queue: &mut impl Queue,
    commands: &mut impl ScsiCommands,
    cdb: &[u8],
    bytes: usize,
) -> Result<u8> {
    // Eight at most.
    let head = commands.ask(cdb, u32::try_from(bytes).unwrap_or(0));
    queue.push(head)?;
    queue.publish()?;
    let since = Instant::now();
    while queue.completed() == 0 {
        if since.elapsed() > ANSWER_LIMIT {
            return Err(unable(&format!("has not answered for {ANSWER_LIMIT:?}")));
        }
        std::thread::yield_now();
    }
    commands.status(queue.pop())
}

fn unable(what: &str) -> Error {
    Error::Requests(format!("the SCSI disk {what}"))
}

/// A command that did not end with GOOD status.
#[cold]
pub(crate) fn failed(kind: Kind, bytes: u32, lba: u32, how: &str) -> Error {
    let what = match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::Flush => return Error::Requests(format!("a flush {how}")),
    };
    Error::Requests(format!("a {what} of {bytes} bytes at block {lba} {how}"))
}
