//! Errors of the operator commands; each text names the cause and the next step.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The result of an operator command.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of an operator command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no file at the monitor's path.
    #[error(
        "there is no socket {}: is the daemon running, and is that the path of its monitor? It has one when it \
         was started with --chardev socket,id=c,path={},server=on,wait=off --monitor chardev=c",
        .0.display(), .0.display()
    )]
    NoSocket(PathBuf),
    /// The file is not a socket.
    #[error("{} is not a socket: name that of the daemon's monitor (path=… of its --chardev)", .0.display())]
    NotASocket(PathBuf),
    /// A socket that a daemon left behind when it ended.
    #[error(
        "no process listens on {}: the daemon that created it has ended. Start it again; it replaces the socket",
        .0.display()
    )]
    NotListening(PathBuf),
    /// The file's permissions forbid connecting.
    #[error(
        "permission to connect to {} is denied: run this as the daemon's user (try sudo), or change the socket's owner \
         or mode", .0.display()
    )]
    PermissionDenied(PathBuf),
    /// The path is longer than a socket address allows.
    #[error(
        "{} is too long for a socket's path, which may have 107 bytes: change to its folder and use a relative path",
        .0.display()
    )]
    PathTooLong(PathBuf),
    /// The connection was accepted, but no greeting came.
    #[error(
        "{} sends no QMP greeting (nothing came in {waited:?}). It may be an export's vhost-user socket, on which \
         the front-end sends first: name the monitor's socket (path=… of --chardev). Or it is a monitor of \
         qemu-storage-daemon that already has a client",
        .path.display()
    )]
    NoGreeting {
        /// The socket.
        path: PathBuf,
        /// How long we waited.
        waited: Duration,
    },
    /// The socket speaks another protocol.
    #[error("{} is not a monitor: it sent '{received}' instead of {{\"QMP\": …}}", .path.display())]
    NotAMonitor {
        /// The socket.
        path: PathBuf,
        /// The beginning of what it sent.
        received: String,
    },
    /// No reply within the time limit.
    #[error(
        "{command} was not answered within {waited:?}: the daemon hangs, or is busy with another command (--timeout \
         waits longer)"
    )]
    Timeout {
        /// The command.
        command: String,
        /// How long we waited.
        waited: Duration,
    },
    /// The daemon closed the connection.
    #[error("the daemon has closed the connection: it has ended, or is about to")]
    Disconnected,
    /// An error reply of the daemon.
    #[error("{class}: {desc}")]
    Command {
        /// QMP's error class, for scripts.
        class: String,
        /// The description, for people.
        desc: String,
    },
    /// The command line does not form a QMP request.
    #[error("{0}")]
    InvalidRequest(String),
    /// The monitor lacks a command that returns statistics.
    #[error(
        "this monitor does not know {0}, which returns the statistics: top needs a blockplane of this version"
    )]
    NoStatistics(&'static str),
    /// A reply without a member that blockplane's monitor sends.
    #[error("the reply to {command} has no '{member}': this is not a monitor of blockplane")]
    MissingMember {
        /// The command.
        command: &'static str,
        /// The member.
        member: &'static str,
    },
    /// Neither an export nor a node has the name.
    #[error("there is no export and no node '{name}'; the nodes are: {}", .nodes.join(", "))]
    NoDisk {
        /// What was asked for.
        name: String,
        /// The names that there are.
        nodes: Vec<String>,
    },
    /// The file of a full copy is there already.
    #[error(
        "{} exists: all of the disk is copied to a new file. Name another one, or remove it", .0.display()
    )]
    TargetExists(PathBuf),
    /// The target is a folder, a socket or a character device.
    #[error(
        "TARGET {} is neither a file nor a block device: name a new file, a block device, or an export of an NBD server \
         (nbd://HOST/EXPORT)", .0.display()
    )]
    TargetKind(PathBuf),
    /// The target has the name of a node, and would be a file.
    #[error(
        "TARGET {0} is the name of a node: add --to-node to use that, or write ./{0} for a file"
    )]
    TargetIsNode(String),
    /// The target is not a URI of an NBD server's export, and begins like one.
    #[error("TARGET {0}")]
    TargetUri(String),
    /// The file that an incremental backup renews is not there.
    #[error(
        "{} is not there: what is dirty in '{bitmap}' is written over a copy of the last backup. Name that, or remove the \
         bitmap to begin with a full backup", .path.display()
    )]
    NoLastBackup {
        /// The file.
        path: PathBuf,
        /// The bitmap.
        bitmap: String,
    },
    /// All was copied, but the bitmap for later runs could not be made.
    #[error(
        "TARGET has the whole disk, but there is no bitmap '{bitmap}' of what changes from now on: {reason}. Keep TARGET as a full backup, \
         and begin again with another one for later runs"
    )]
    NoNewBitmap {
        /// The bitmap.
        bitmap: String,
        /// Why there is none.
        reason: Box<Error>,
    },
    /// The file that an incremental backup renews is larger than the disk.
    #[error(
        "{} is larger than the disk ({bytes} bytes): it is not the file of the last backup, or the disk was resized since. Then cut a \
         copy of it to that size, and name the copy",
        .path.display()
    )]
    TargetIsLarger {
        /// The file.
        path: PathBuf,
        /// Bytes of the disk.
        bytes: u64,
    },
    /// An incremental backup with a bitmap that misses what is written.
    #[error(
        "bitmap '{bitmap}' of node '{node}' {}: TARGET would lack what was written. Remove it (blockplane bitmap … {node} {bitmap} \
         --remove), and begin with a full backup to a new file", .reason
    )]
    BitmapIsIncomplete {
        /// The bitmap.
        bitmap: String,
        /// Its node.
        node: String,
        /// Why it is incomplete.
        reason: &'static str,
    },
    /// A node that would be removed has dirty bitmaps.
    #[error(
        "node '{0}' has dirty bitmaps, which stay with the old disk: remove them (blockplane bitmap … --remove), and begin with a full \
         backup after the move"
    )]
    NodeHasBitmaps(String),
    /// A job of the daemon has failed.
    #[error("{failure}: {error}; the daemon's log may say more")]
    Job {
        /// That it has failed, and on which side if that is known.
        failure: &'static str,
        /// The error.
        error: String,
    },
    /// A copy has failed, and its target cannot be closed.
    #[error(
        "{failed}\nThe node '{node}' of TARGET is still there ({reason}). When the reason is gone remove it: blockplane qmp SOCKET \
         blockdev-del node-name={node}"
    )]
    TargetStays {
        /// What has failed.
        failed: Box<Error>,
        /// The name of the target's node.
        node: String,
        /// Why it was not closed.
        reason: Box<Error>,
    },
    /// A node has no file for its bitmaps.
    #[error(
        "{0}: the node has no file for them. Leave out --persistent, or start the daemon with bitmap-file=PATH in the options of the \
         node's --blockdev"
    )]
    NoBitmapFile(Box<Error>),
    /// A copy was refused, and an earlier command, which may have been killed, has left its job.
    #[error(
        "{refused}\nThe job '{job}' of another backup or mirror command is there. If that command was killed, give its job up: blockplane \
         qmp SOCKET job-cancel id={job}, then blockdev-del node-name=NAME for the node of its target (query-named-block-nodes)"
    )]
    OtherJob {
        /// What was refused.
        refused: Box<Error>,
        /// The other job.
        job: String,
    },
    /// A copy was refused, and an earlier command, which may have been killed, has left the node of its target.
    #[error(
        "{refused}\nThe node '{node}' of another backup command is there. If that command was killed, remove it: blockplane qmp SOCKET \
         blockdev-del node-name={node}"
    )]
    OtherTarget {
        /// What was refused.
        refused: Box<Error>,
        /// The other node.
        node: String,
    },
    /// The name of a node that has "-moved" after it is longer than names may be.
    #[error(
        "'{0}' has more than {most} bytes, which a node's name may have: name the target's node by --node-name",
        most = options::MAX_NODE_NAME_BYTES
    )]
    LongNodeName(String),
    /// A mirror that is ready, whose completion the daemon has refused for some time.
    #[error(
        "{reason}\nThe target is up to date, and stays so by the job '{id}'. When the reason is gone, complete it: blockplane qmp SOCKET \
         job-complete id={id}, then blockdev-del node-name=NAME for the old node. Or give up: blockplane qmp SOCKET job-cancel id={id}"
    )]
    NotCompleted {
        /// The job.
        id: String,
        /// The last refusal.
        reason: String,
    },
    /// Ctrl-C, or another signal to end.
    #[error("interrupted")]
    Interrupted,
    /// An operating-system error.
    #[error("{doing}: {source}")]
    Io {
        /// The attempted operation and its object.
        doing: String,
        /// The error.
        source: io::Error,
    },
}

impl Error {
    /// Says what a node needs for a persistent bitmap, if it was refused one.
    pub(crate) fn with_need_of_bitmap_file(self) -> Error {
        match &self {
            Error::Command { desc, .. } if desc.contains("store persistent bitmaps") => {
                Error::NoBitmapFile(self.into())
            }
            _ => self,
        }
    }

    /// For `map_err`: an I/O error while `doing` something.
    pub(crate) fn io<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            doing: doing.into(),
            source: source.into(),
        }
    }
}
