//! A task of an initiator's, and what must hold at its end.

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

pub struct Slot {
    pub task: Task,
    pub waits: Waits,
    pub lun: u16,
    pub opcode: u8,
    pub phase: DataPhase,
    pub given: u64,
    pub read_only: bool,
    pub cancelled: bool,
    /// Requests that change the disk, and requests that failed.
    pub writes: u32,
    pub failures: u32,
    pub buffer: Vec<u8>,
    pub list: Vec<iovec>,
}

impl Slot {
    /// The command is over.
    pub fn check_end(&self) {
        let task = &self.task;
        if self.cancelled {
            return;
        }
        let status = task.status();
        assert_ne!(status, Status::TaskAborted, "it was not aborted");
        assert!(task.transferred_bytes() <= self.given);
        let limit = match self.phase {
            DataPhase::DataIn(bytes) => bytes.min(self.given),
            // The initiator's own data stay as they are.
            DataPhase::DataOut(_) => self.given,
            DataPhase::Status => 0,
        };
        let limit = usize::try_from(limit).expect("64 bits");
        assert!(task.transferred_bytes() <= limit as u64);
        assert!(
            self.buffer[limit..].iter().all(|byte| *byte == UNTOUCHED),
            "what was not announced"
        );
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
        if refused && self.failures == 0 {
            assert_eq!(self.writes, 0, "{:#x} was refused", self.opcode);
        }
    }
}
