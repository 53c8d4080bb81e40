//! Error policy of an export whose disk fails a request: QEMU's `rerror` and `werror`.

use engine::Errno;

/// Policy for errors of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The guest gets the error.
    #[default]
    Report,
    /// The guest gets a success.
    Ignore,
    /// As `Stop` where the disk is full, else as `Report`.
    NoSpace,
    /// The request is parked until a client resumes it.
    Stop,
}

/// Action on one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorAction {
    /// The guest gets the error.
    Report,
    /// The guest gets a success.
    Ignore,
    /// The request is parked.
    Stop,
}

impl ErrorAction {
    /// QEMU's name for it.
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
    /// The action of this policy on an error.
    #[must_use]
    pub fn action(self, errno: Errno) -> ErrorAction {
        match self {
            // The guest's memory was unmapped. A retry cannot help.
            _ if errno == Errno::FAULT => ErrorAction::Report,
            OnError::Report => ErrorAction::Report,
            OnError::Ignore => ErrorAction::Ignore,
            OnError::Stop => ErrorAction::Stop,
            OnError::NoSpace if errno == Errno::NOSPC => ErrorAction::Stop,
            OnError::NoSpace => ErrorAction::Report,
        }
    }
}

/// Error policy of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Of reads (`rerror`).
    pub reads: OnError,
    /// Of all other requests (`werror`).
    pub writes: OnError,
}
