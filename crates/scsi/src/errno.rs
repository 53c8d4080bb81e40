//! Maps the error of a failed block request to sense data, or to another status than CHECK CONDITION.

use engine::Errno;

use crate::sense::{Sense, SenseKey};

/// The end of a command whose request has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandFailure {
    Sense(Sense),
    /// RESERVATION CONFLICT: another initiator has reserved the disk below.
    Conflict,
    /// TASK SET FULL: the disk below has too many requests.
    TaskSetFull,
}

/// Maps an error of a read or write. The mapping is that of QEMU and Linux, which guests know.
pub(crate) fn command_failure_from_errno(errno: Errno, write: bool) -> CommandFailure {
    let (key, code) = match errno {
        Errno::BADE => return CommandFailure::Conflict,
        Errno::DOM => return CommandFailure::TaskSetFull,
        // MEDIUM NOT PRESENT
        Errno::NOMEDIUM => (SenseKey::NotReady, 0x3a00),
        // INTERNAL TARGET FAILURE
        Errno::NOMEM | Errno::REMOTEIO => (SenseKey::HardwareError, 0x4400),
        // SPACE ALLOCATION FAILED WRITE PROTECT
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => (SenseKey::DataProtect, 0x2707),
        Errno::ROFS => (SenseKey::DataProtect, 0x2700),
        // WRITE ERROR, UNRECOVERED READ ERROR
        Errno::NODATA if write => (SenseKey::MediumError, 0x0c00),
        Errno::NODATA => (SenseKey::MediumError, 0x1100),
        // I/O PROCESS TERMINATED
        _ => (SenseKey::AbortedCommand, 0x0006),
    };
    CommandFailure::Sense(Sense::new(key, code))
}
