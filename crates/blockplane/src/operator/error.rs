//! Errors between an operator and a monitor: the mistake, and the next step.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A value, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error(
        "there is no socket {}: is the daemon running, and is that the path of its monitor? It has one when it \
         was started with --chardev socket,id=c,path={},server=on,wait=off --monitor chardev=c",
        .0.display(), .0.display()
    )]
    NoSocket(PathBuf),
    /// There is something else.
    #[error("{} is not a socket: name that of the daemon's monitor (path=… of its --chardev)", .0.display())]
    NotASocket(PathBuf),
    /// A socket that was left behind.
    #[error(
        "nobody listens on {}: the daemon that made it has ended. Start it again, and it takes the socket over",
        .0.display()
    )]
    NobodyListens(PathBuf),
    /// The file's permissions.
    #[error(
        "{} may not be connected to: be the user that the daemon runs as (try sudo), or change the socket's owner \
         or mode", .0.display()
    )]
    NotAllowed(PathBuf),
    /// It is longer than a socket's path can be.
    #[error(
        "{} is too long for a socket's path, which may have 107 bytes: go to its folder and name it from there",
        .0.display()
    )]
    TooLong(PathBuf),
    /// Connected, and then nothing.
    #[error(
        "{} does not greet as a monitor does (nothing came in {waited:?}). An export's vhost-user socket, on \
         which the front-end speaks first, is like that: name the monitor's socket (path=… of --chardev). So is a \
         monitor of qemu-storage-daemon that somebody else is connected to",
        .path.display()
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// For how long.
        waited: Duration,
    },
    /// It speaks something else.
    #[error("{} is not a monitor: it said '{said}' where one says {{\"QMP\": …}}", .path.display())]
    NotQmp {
        /// The socket.
        path: PathBuf,
        /// The beginning of what it said.
        said: String,
    },
    /// No answer.
    #[error(
        "{command} was not answered within {waited:?}: the daemon hangs, or is busy with another command (--timeout \
         waits longer)"
    )]
    Unanswered {
        /// The command.
        command: String,
        /// For how long.
        waited: Duration,
    },
    /// The connection has ended.
    #[error("the daemon has closed the connection: it has ended, or is about to")]
    Gone,
    /// The daemon's own error.
    #[error("{class}: {desc}")]
    Refused {
        /// For scripts.
        class: String,
        /// For people.
        desc: String,
    },
    /// Words that say nothing a monitor could be asked.
    #[error("{0}")]
    Words(String),
    /// A monitor of a daemon that does not count.
    #[error(
        "this monitor does not know {0}, from which the figures come: top needs a blockplane of this version"
    )]
    NoFigures(&'static str),
    /// Ctrl-C, or another signal to end.
    #[error("interrupted")]
    Interrupted,
    /// An operating-system error, and what we were doing.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, and with what.
        doing: String,
        /// The error.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: an I/O error while `doing` something.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            doing: doing.into(),
            source: source.into(),
        }
    }
}
