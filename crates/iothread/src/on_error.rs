//! Error policy of an export whose disk fails a request: QEMU's `rerror` and `werror`.

use engine::Errno;

/// What is to be done about errors of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The guest gets the error.
    #[default]
    Report,
    /// The guest gets a success.
    Ignore,
    /// As `Stop` where the disk is full, else as `Report`.
    NoSpace,
    /// The request waits until an operator has put the disk right.
    Stop,
}

/// What is done about one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorAction {
    /// The guest gets the error.
    Report,
    /// The guest gets a success.
    Ignore,
    /// The request waits.
    Stop,
}

impl ErrorAction {
    /// As QEMU calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorAction::Report => "report",
            ErrorAction::Ignore => "ignore",
            ErrorAction::Stop => "stop",
        }
    }
}

impl OnError {
    pub(crate) fn action(self, errno: Errno) -> ErrorAction {
        match self {
            // The guest's own memory has gone. No repair of a disk helps.
            _ if errno == Errno::FAULT => ErrorAction::Report,
            OnError::Report => ErrorAction::Report,
            OnError::Ignore => ErrorAction::Ignore,
            OnError::Stop => ErrorAction::Stop,
            OnError::NoSpace if errno == Errno::NOSPC => ErrorAction::Stop,
            OnError::NoSpace => ErrorAction::Report,
        }
    }
}

/// Of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Of reads (`rerror`).
    pub reads: OnError,
    /// Of all others (`werror`).
    pub writes: OnError,
}
