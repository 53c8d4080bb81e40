//! Errors of a message: a [`Refused`] one is answered with an error, a [`Violation`] ends the
//! connection.

use std::borrow::Cow;

use rustix::io::Errno;

/// A command that is not carried out.
#[derive(Debug, thiserror::Error)]
#[error("{why} ({errno})")]
pub(crate) struct Refused {
    pub errno: Errno,
    pub why: Cow<'static, str>,
    /// Front-ends ask for it though they can do without: nothing that an operator should read.
    pub is_usual: bool,
}

impl Refused {
    pub fn new(errno: Errno, why: impl Into<Cow<'static, str>>) -> Self {
        Refused {
            errno,
            why: why.into(),
            is_usual: false,
        }
    }

    pub fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Refused::new(Errno::INVAL, why)
    }
}

/// After this nobody knows where the next message begins, or what is meant by it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Violation {
    #[error("a message of {size} bytes; it must have {min} to {max}")]
    Size { size: u32, min: u32, max: u32 },
    #[error("a message with flags {flags:#x} is neither a command nor a reply")]
    Type { flags: u32 },
    #[error("command {command} before VERSION, which has to be the first")]
    NoVersion { command: u16 },
    #[error("more than {max} descriptors in one message")]
    TooManyFds { max: usize },
    #[error("a reply with id {id} to command {command}, which was not asked")]
    NotAsked { id: u16, command: u16 },
}
