//! A task of an initiator's, its command, and what must hold at its end.

use block::{DiskCall, Request};
use libc::iovec;
use scsi::{DataPhase, Status, Task};

use super::UNTOUCHED;

/// What a task waits for.
pub enum Waits {
    Idle,
    Disk(Request),
    Call(DiskCall),
    /// Its turn.
    Turn,
}

#[derive(Default)]
pub struct Command {
    pub lun: u16,
    pub opcode: u8,
    pub phase: Option<DataPhase>,
    /// Bytes of the initiator's memory.
    pub given: u64,
    pub read_only: bool,
    pub cancelled: bool,
    /// Requests that change the disk, and requests that failed.
    pub writes: u32,
    pub failures: u32,
}

pub struct Slot {
    pub task: Task,
    pub waits: Waits,
    pub command: Command,
    pub buffer: Vec<u8>,
    pub list: Vec<iovec>,
}

impl Slot {
    pub fn is_at_a_disk(&self) -> bool {
        matches!(self.waits, Waits::Disk(_) | Waits::Call(_))
    }

    /// The command is over.
    pub fn check_end(&self) {
        let (task, command) = (&self.task, &self.command);
        if command.cancelled {
            return;
        }
        let status = task.status();
        assert_ne!(status, Status::TaskAborted, "it was not aborted");
        assert!(task.transferred_bytes() <= command.given);
        let limit = match command.phase {
            Some(DataPhase::DataIn(bytes)) => bytes.min(command.given),
            // The initiator's own data stay as they are.
            Some(DataPhase::DataOut(_)) => command.given,
            _ => 0,
        };
        let limit = usize::try_from(limit).expect("64 bits");
        assert!(task.transferred_bytes() <= limit as u64);
        let mut rest = self.buffer[limit..].iter();
        assert!(rest.all(|byte| *byte == UNTOUCHED), "more than announced");
        let sense = task.sense();
        assert_eq!(status == Status::CheckCondition, !sense.is_empty());
        // SPC-4, 4.5.3: the bit before the format says that there is information.
        let key = match sense.first().map(|first| first & 0x7f) {
            None => None,
            Some(0x70 | 0x71) => Some(sense[2] & 0xf),
            Some(0x72 | 0x73) => Some(sense[1] & 0xf),
            Some(other) => panic!("sense data of format {other:#x}"),
        };
        let refused = status == Status::ReservationConflict || matches!(key, Some(2 | 5 | 6 | 7));
        if refused && command.failures == 0 {
            assert_eq!(command.writes, 0, "{:#x} was refused", command.opcode);
        }
    }
}
