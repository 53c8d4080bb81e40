//! Errors of connecting to a cluster, with what to check.

use std::ffi::NulError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use engine::Errno;

use crate::LoadError;

/// Failure to connect to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Ceph's libraries are not usable.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// A thread of the connection, or the pipe of its log, could not be made.
    #[error("cannot start the threads of a connection to Ceph: {0}")]
    Thread(io::Error),
    /// A zero byte in a text.
    #[error("an option of the connection to Ceph has a zero byte: {0}")]
    ZeroByte(#[from] NulError),
    /// librados cannot use the configuration file.
    #[error("librados cannot use {}: {errno}; check that the file exists, is readable, and is a ceph.conf", path.display())]
    ConfigurationFile {
        /// The file.
        path: PathBuf,
        /// librados' error.
        errno: Errno,
    },
    /// librados refuses an option.
    #[error("librados refuses its option {option}: {errno}")]
    Option {
        /// The name in Ceph's configuration.
        option: &'static str,
        /// librados' error.
        errno: Errno,
    },
    /// No monitor has an address.
    #[error(
        "no address of a Ceph monitor is known: name monitors (server), or a ceph.conf with mon_host (conf)"
    )]
    NoMonitors,
    /// There is no key, since no keyring can be read.
    #[error("{user} has no key, since the keyring {} cannot be read: {error}{advice}", path.display())]
    Keyring {
        /// The client's name with its type.
        user: String,
        /// The first configured file that exists, or the first one of all.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
        /// What may be the cause beside the file's permissions, after a semicolon; empty if there is nothing.
        advice: &'static str,
    },
    /// The cluster does not accept the client.
    #[error(
        "the Ceph cluster at {monitors} refuses {user}: check its key and its way of authentication; `ceph auth get {user}` shows the key{detail}"
    )]
    Refused {
        /// Addresses of the monitors.
        monitors: String,
        /// The client's name with its type.
        user: String,
        /// The last error in the log of librados, in parentheses; empty if there is none.
        detail: String,
    },
    /// No monitor has let the client in within the time.
    #[error(
        "the Ceph cluster at {monitors} did not accept {user} within {} s: check the addresses, the network, and that monitors are running and have a quorum{detail}",
        timeout.as_secs_f64()
    )]
    Timeout {
        /// Addresses of the monitors.
        monitors: String,
        /// The client's name with its type.
        user: String,
        /// The limit.
        timeout: Duration,
        /// The last error in the log of librados, in parentheses; empty if there is none.
        detail: String,
    },
    /// Another error.
    #[error("cannot connect to the Ceph cluster at {monitors} as {user}: {errno}{detail}")]
    Failed {
        /// Addresses of the monitors.
        monitors: String,
        /// The client's name with its type.
        user: String,
        /// librados' error.
        errno: Errno,
        /// The last error in the log of librados, in parentheses; empty if there is none.
        detail: String,
    },
}
