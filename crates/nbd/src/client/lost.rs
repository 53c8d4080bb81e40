//! Reasons for which a connection ends.

use engine::Errno;

use super::reply::Violation;

/// Why a connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    #[error("the server has closed it")]
    Closed,
    #[error("{}", std::io::Error::from(*.0))]
    Io(Errno),
    #[error("the server violates the NBD protocol: {0}")]
    Violation(#[from] Violation),
    #[error("the server is ending")]
    ServerEnds,
    #[error("guest memory of a request was gone when part of it was sent")]
    UnreadableMemory,
    #[error("the server answers none of many requests that are not wanted any more")]
    Unanswered,
}

impl Lost {
    /// Whether the server may have crashed: also if it is silent. Otherwise this side has ended the connection.
    pub fn may_be_a_crash(self) -> bool {
        self != Lost::UnreadableMemory
    }
}
