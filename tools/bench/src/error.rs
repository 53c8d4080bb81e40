//! Errors of a measurement.

use std::io;

use vhost::vhost_user::Error as ProtocolError;

/// A measurement's result or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operating-system error, and what we were doing.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, and with what.
        doing: String,
        /// The error.
        source: io::Error,
    },
    /// The server ended or cannot be reached: what happened, its command line, the end of what it printed.
    #[error("the server {0}")]
    Server(String),
    /// The server refused a vhost-user message or lacks something that we need.
    #[error("vhost-user: {0}")]
    Protocol(String),
    /// What went wrong with one of several servers, after its name.
    #[error("{0}: {1}")]
    Of(String, Box<Error>),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Gone,
    /// Interrupted by Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// Requests were answered with an error, or not at all.
    #[error("{0}")]
    Requests(String),
    /// What was read is not what was written.
    #[error("the disk lost or changed data: {0}")]
    Mismatch(String),
    /// The machine has not what the measurement needs.
    #[error("{0}")]
    Unsuitable(String),
}

impl Error {
    /// For `map_err`: an I/O error while `doing` something.
    pub fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            doing: doing.into(),
            source: source.into(),
        }
    }
}

impl From<vhost::Error> for Error {
    fn from(error: vhost::Error) -> Self {
        use ProtocolError::{Disconnected, PartialMessage, SocketBroken};
        match error {
            vhost::Error::VhostUserProtocol(Disconnected | PartialMessage | SocketBroken(_)) => {
                Error::Gone
            }
            other => Error::Protocol(other.to_string()),
        }
    }
}
