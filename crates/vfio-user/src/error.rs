//! Errors of messages: a [`CommandError`] is sent to the front-end, a [`ProtocolViolation`] ends the
//! connection.

use std::borrow::Cow;

use rustix::io::Errno;

/// Error of a command that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{reason} ({errno})")]
pub(crate) struct CommandError {
    pub errno: Errno,
    pub reason: Cow<'static, str>,
    /// Front-ends send the command though they do not need it: not logged.
    pub is_expected: bool,
}

impl CommandError {
    /// The error with this number in the reply, and this reason in the log.
    pub fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        CommandError {
            errno,
            reason: reason.into(),
            is_expected: false,
        }
    }

    /// The error `EINVAL`.
    pub fn invalid(reason: impl Into<Cow<'static, str>>) -> Self {
        CommandError::new(Errno::INVAL, reason)
    }
}

/// A violation of the protocol, after which the following messages cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ProtocolViolation {
    #[error("a message of {size} bytes; it must have {min} to {max}")]
    Size { size: u32, min: u32, max: u32 },
    #[error("a message with flags {flags:#x} is neither a command nor a reply")]
    Type { flags: u32 },
    #[error("command {command} before VERSION, which must be the first")]
    NoVersion { command: u16 },
    #[error("more than {max} descriptors in one message")]
    TooManyFds { max: usize },
    #[error("a reply with id {id} to command {command}, which was not sent")]
    UnknownReply { id: u16, command: u16 },
}
