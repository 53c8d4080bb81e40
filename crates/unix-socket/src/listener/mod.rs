//! Listening Unix stream sockets, bound to a path or inherited, for front-ends and clients of monitors.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    sockopt,
};

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error(
        "{}: another server listens on this socket; stop it or choose another path",
        .0.display()
    )]
    Live(PathBuf),
    /// This process listens there.
    #[error(
        "{}: this daemon listens on this socket already, for something else; give each its own path",
        .0.display()
    )]
    Own(PathBuf),
    /// The path is no socket.
    #[error("{}: exists and is no socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The kernel refused.
    #[error("cannot listen on {}: {error}{}", path.display(), advice_for_errno(error))]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// An inherited descriptor is no listening socket.
    #[error("descriptor {fd} is not a listening Unix stream socket: {found}")]
    NotListening {
        /// Its number.
        fd: RawFd,
        /// What it is.
        found: String,
    },
}

/// Advice about an error of the kernel's.
fn advice_for_errno(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "; raise `ulimit -n` (`LimitNOFILE=`)",
        Some(Errno::NFILE) => "; raise the host's limit, sysctl fs.file-max",
        Some(Errno::NOENT) => "; make its folder first",
        _ => "",
    }
}

/// The users that may connect to a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowedPeers {
    /// Users that may write to the socket; for a path, the process's umask decides.
    #[default]
    AsUmask,
    /// This process's user, and root: a socket that is bound here has mode 0600.
    User,
    /// Users with these numbers. Others are disconnected, even if the umask lets them connect.
    Users(Vec<u32>),
}

impl AllowedPeers {
    /// The mode of a new socket, if it is not the umask's.
    fn socket_mode(&self) -> Option<Mode> {
        match self {
            AllowedPeers::AsUmask | AllowedPeers::Users(_) => None,
            AllowedPeers::User => Some(Mode::RUSR | Mode::WUSR),
        }
    }

    /// Whether a client that has connected is to be served.
    fn is_admitted(&self, stream: &UnixStream) -> bool {
        let AllowedPeers::Users(users) = self else {
            return true;
        };
        match sockopt::socket_peercred(stream) {
            Ok(peer) if users.contains(&peer.uid.as_raw()) => true,
            Ok(peer) => {
                let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero());
                tracing::warn!(uid, pid, "a user who may not connect here is refused");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "a client is refused: its user cannot be determined");
                false
            }
        }
    }
}

/// A listening socket; one that was bound here is removed when dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<ListeningSocket>,
    peers: AllowedPeers,
}

/// The socket of a [`Listener`].
#[derive(Debug)]
struct ListeningSocket {
    listener: UnixListener,
    bound: Option<BoundPath>,
    /// The path is not removed on drop: another process listens on the socket as well.
    keep_path: AtomicBool,
}

/// A weak reference to a [`Listener`].
#[derive(Clone, Debug)]
pub struct WeakListener(Weak<ListeningSocket>);

impl WeakListener {
    /// Whether the listener still exists.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// A duplicate of the listener's descriptor; `None` when the listener is gone.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn duplicate(&self) -> io::Result<Option<OwnedFd>> {
        let socket = self.0.upgrade();
        let fd = socket.map(|socket| socket.listener.as_fd().try_clone_to_owned());
        fd.transpose()
    }

    /// Sets whether the socket's path stays when the listener is dropped, since another process listens on it as well.
    pub fn set_keep_path(&self, keep: bool) {
        if let Some(socket) = self.0.upgrade() {
            socket.keep_path.store(keep, Ordering::Relaxed);
        }
    }
}

/// The path of a socket that was bound here.
#[derive(Debug)]
struct BoundPath {
    path: PathBuf,
    /// Device and inode of our socket: another process may replace it later.
    device_and_inode: (u64, u64),
}

impl Listener {
    /// Listens on a path, for all users that may write there. A stale socket, on which no process listens, is
    /// replaced; a live one is not.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_for_peers(path, AllowedPeers::AsUmask)
    }

    /// Listens on a path for these peers. Others cannot connect at any time.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_for_peers(path: &Path, peers: AllowedPeers) -> Result<Self, BindError> {
        let bind_error = |error| BindError::Bind {
            path: path.to_owned(),
            error,
        };
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(BindError::NotASocket(path.to_owned()));
            }
            Ok(_) => match connect_to_find_listener(path) {
                Ok(ListeningProcess::This) => return Err(BindError::Own(path.to_owned())),
                // EAGAIN: the backlog of a listening process is full.
                Ok(ListeningProcess::Other) | Err(Errno::AGAIN) => {
                    return Err(BindError::Live(path.to_owned()));
                }
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(bind_error)?,
                Err(error) => return Err(bind_error(error.into())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(bind_error(error)),
        }
        let listener = match peers.socket_mode() {
            None => UnixListener::bind(path),
            Some(mode) => bind_with_mode_and_listen(path, mode),
        };
        let listener = listener.map_err(bind_error)?;
        let bound = BoundPath::of_socket_at(path).map_err(bind_error)?;
        Ok(Self::new(listener, peers, Some(bound), false))
    }

    /// A listener that removes `bound` when it is dropped, unless `keep_path`.
    fn new(
        listener: UnixListener,
        peers: AllowedPeers,
        bound: Option<BoundPath>,
        keep_path: bool,
    ) -> Self {
        Listener {
            socket: Arc::new(ListeningSocket {
                listener,
                bound,
                keep_path: AtomicBool::new(keep_path),
            }),
            peers,
        }
    }

    /// Takes over a socket that another process listens on; `path` is where it was bound, if it was. The path stays when
    /// this is dropped, unless [`WeakListener::set_keep_path`] changes that.
    #[must_use]
    pub fn take_over(fd: OwnedFd, path: Option<&Path>, peers: AllowedPeers) -> Self {
        let bound = path.and_then(|path| BoundPath::of_socket_at(path).ok());
        Self::new(UnixListener::from(fd), peers, bound, true)
    }

    /// A weak reference to the listener.
    #[must_use]
    pub fn downgrade(&self) -> WeakListener {
        WeakListener(Arc::downgrade(&self.socket))
    }

    /// Uses an inherited descriptor of a listening socket, for instance from systemd. One that is refused stays open.
    ///
    /// # Errors
    /// [`BindError::NotListening`].
    ///
    /// # Safety
    /// No other code in this process uses the descriptor.
    pub unsafe fn inherit(fd: RawFd) -> Result<Self, BindError> {
        let not_listening = |found: String| BindError::NotListening { fd, found };
        if (0..=2).contains(&fd) {
            return Err(not_listening(
                "it is standard input, output or error".into(),
            ));
        }
        if fd < 0 || rustix::io::fcntl_getfd(borrow_fd_unchecked(&fd)).is_err() {
            return Err(not_listening("it is not open".into()));
        }
        let socket = borrow_fd_unchecked(&fd);
        match sockopt::socket_domain(socket) {
            Ok(AddressFamily::UNIX) => {}
            Ok(_) => return Err(not_listening("it is a socket of another family".into())),
            Err(_) => return Err(not_listening("it is no socket".into())),
        }
        if sockopt::socket_acceptconn(socket) != Ok(true) {
            return Err(not_listening("it does not listen".into()));
        }
        // Child processes must not inherit it.
        let _ = rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC);
        // SAFETY: it is open, and the caller gives up its ownership.
        let listener = UnixListener::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self::new(listener, AllowedPeers::AsUmask, None, false))
    }

    /// Serves these peers from now on. (The mode of an inherited socket is that of the process that made it.)
    #[must_use]
    pub fn with_peers(mut self, peers: AllowedPeers) -> Self {
        self.peers = peers;
        self
    }

    /// Accepts a client; `None` if its user may not connect.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.socket.listener.accept()?;
        Ok(self.peers.is_admitted(&stream).then_some(stream))
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket.listener
    }
}

impl BoundPath {
    /// The path of the socket that exists there now.
    fn of_socket_at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        let device_and_inode = (metadata.dev(), metadata.ino());
        // A daemon changes its working directory, and still has to find the socket to remove it.
        let path = std::path::absolute(path)?;
        Ok(BoundPath {
            path,
            device_and_inode,
        })
    }
}

/// Binds a socket that has this mode from the start: the kernel (unix_bind) uses the mode that the descriptor has when it is
/// bound, less the umask.
fn bind_with_mode_and_listen(path: &Path, mode: Mode) -> io::Result<UnixListener> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    fchmod(&socket, mode)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// The system's maximum.
const BACKLOG: i32 = -1;

/// The process that listens on a socket.
enum ListeningProcess {
    This,
    Other,
}

/// Connects to a socket without waiting, to find out whether this process or another listens on it. An error: none
/// does.
fn connect_to_find_listener(path: &Path) -> rustix::io::Result<ListeningProcess> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // The credentials are those of the process that called listen(2).
    let is_this =
        sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.pid == rustix::process::getpid());
    Ok(match is_this {
        true => ListeningProcess::This,
        false => ListeningProcess::Other,
    })
}

/// Borrows a descriptor to check whether it is open.
fn borrow_fd_unchecked(fd: &RawFd) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: it is used only to check whether it is open; it is not -1, which the type forbids.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) }
}

impl Drop for ListeningSocket {
    /// Removes the path of a socket that was bound here, unless another process uses or has replaced it.
    fn drop(&mut self) {
        if !self.keep_path.load(Ordering::Relaxed)
            && let Some(BoundPath {
                path,
                device_and_inode,
            }) = &self.bound
            && let Ok(metadata) = std::fs::symlink_metadata(path)
            && (metadata.dev(), metadata.ino()) == *device_and_inode
        {
            // An error: it was removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_for_its_own_user_has_mode_0600() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = Listener::bind_for_peers(&path, AllowedPeers::User).unwrap();
        let permissions = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
    }

    #[test]
    fn only_listed_users_are_served() {
        let us = rustix::process::getuid().as_raw();
        let folder = tempfile::tempdir().unwrap();
        for (index, (users, served)) in [
            (vec![us], true),
            (vec![us + 1, us], true),
            (vec![us + 1], false),
        ]
        .into_iter()
        .enumerate()
        {
            let path = folder.path().join(index.to_string());
            let bound =
                Listener::bind_for_peers(&path, AllowedPeers::Users(users.clone())).unwrap();
            let client = UnixStream::connect(&path).unwrap();
            assert_eq!(bound.accept().unwrap().is_some(), served, "{users:?}");
            drop(client);

            let path = folder.path().join(format!("inherited {index}"));
            let fd = OwnedFd::from(UnixListener::bind(&path).unwrap());
            // SAFETY: the descriptor was given up.
            let inherited = unsafe { Listener::inherit(fd.into_raw_fd()) }.unwrap();
            let inherited = inherited.with_peers(AllowedPeers::Users(users));
            let _client = UnixStream::connect(&path).unwrap();
            assert_eq!(inherited.accept().unwrap().is_some(), served);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let live = Listener::bind(&path).unwrap();
        let error = Listener::bind(&path).unwrap_err();
        assert!(matches!(error, BindError::Own(_)), "{error}");
        drop(live);
        assert!(!path.exists(), "removed with its listener");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale");
        let _replaced = Listener::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_socket_that_is_taken_over_stays_until_its_new_owner_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = Listener::bind(&path).unwrap();
        let known = first.downgrade();
        let fd = known.duplicate().unwrap().unwrap();
        let second = Listener::take_over(fd, Some(&path), AllowedPeers::User);
        let of_second = second.downgrade();
        // A new owner that fails leaves it to the first.
        drop(second);
        assert!(!of_second.is_open());
        UnixStream::connect(&path).unwrap();
        let fd = known.duplicate().unwrap().unwrap();
        let second = Listener::take_over(fd, Some(&path), AllowedPeers::User);
        known.set_keep_path(true);
        drop(first);
        assert!(!known.is_open() && known.duplicate().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(second.accept().unwrap().is_some());
        second.downgrade().set_keep_path(false);
        drop(second);
        assert!(!path.exists(), "removed with its last owner");
    }

    #[test]
    fn a_file_is_never_replaced() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            Listener::bind(file.path()),
            Err(BindError::NotASocket(_))
        ));
        assert!(file.path().exists());
    }

    #[test]
    fn a_socket_of_another_listener_is_left_alone_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = Listener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = Listener::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn only_a_listening_unix_socket_is_inherited() {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(folder.path().join("socket")).unwrap();
        // SAFETY: the descriptor was given up.
        unsafe { Listener::inherit(socket.into_raw_fd()) }.unwrap();
        let file = tempfile::tempfile().unwrap();
        // SAFETY: as above.
        let error = unsafe { Listener::inherit(file.into_raw_fd()) }.unwrap_err();
        assert!(error.to_string().contains("no socket"), "{error}");
        let (stream, _other) = UnixStream::pair().unwrap();
        // SAFETY: as above.
        let error = unsafe { Listener::inherit(stream.into_raw_fd()) }.unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
        // SAFETY: no such descriptor.
        let error = unsafe { Listener::inherit(999_999) }.unwrap_err();
        assert!(error.to_string().contains("not open"), "{error}");
    }
}
