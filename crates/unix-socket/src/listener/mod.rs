//! Unix stream sockets to listen on: bound to a path, or inherited.
//!
//! Front-ends of disks connect to such sockets, and clients of monitors.

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
    /// Somebody answers there.
    #[error(
        "{}: another server listens on this socket; stop it or choose another path",
        .0.display()
    )]
    Live(PathBuf),
    /// We do ourselves.
    #[error(
        "{}: this daemon listens on this socket already, for something else; give each its own path",
        .0.display()
    )]
    Own(PathBuf),
    /// Something else is there.
    #[error("{}: exists and is no socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The kernel refused.
    #[error("cannot listen on {}: {error}{}", path.display(), hint(error))]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// An inherited descriptor that is not what it should be.
    #[error("descriptor {fd} is not a listening Unix stream socket: {found}")]
    NotListening {
        /// Its number.
        fd: RawFd,
        /// What it is.
        found: String,
    },
}

/// What to do about an error of the kernel's, if it does not say that itself.
fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => "; raise `ulimit -n` (`LimitNOFILE=`)",
        Some(Errno::NFILE) => "; raise the host's limit, sysctl fs.file-max",
        Some(Errno::NOENT) => "; make its folder first",
        _ => "",
    }
}

/// Who may connect to a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Whoever may write to it; with a path, as the process's umask says.
    #[default]
    AsUmask,
    /// This process's user, and root: a socket of ours has mode 0600.
    User,
    /// Users of these numbers: who else can connect, as the umask says, is let go again.
    Users(Vec<u32>),
}

impl Peers {
    /// The mode of a socket, if it is not the umask's.
    fn mode(&self) -> Option<Mode> {
        match self {
            Peers::AsUmask | Peers::Users(_) => None,
            Peers::User => Some(Mode::RUSR | Mode::WUSR),
        }
    }

    /// Whether one who has connected is to be served.
    fn admit(&self, stream: &UnixStream) -> bool {
        let Peers::Users(users) = self else {
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
                tracing::warn!(%error, "somebody is refused who cannot be asked for a user");
                false
            }
        }
    }
}

/// A listening socket; one that was bound here is removed when dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Socket>,
    peers: Peers,
}

#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    bound: Option<Bound>,
    /// It stays when it is dropped: another process has it as well.
    left: AtomicBool,
}

/// Knows a [`Listener`] as long as it is there, whoever has it.
#[derive(Clone, Debug)]
pub struct Known(Weak<Socket>);

impl Known {
    /// Whether it is still listened on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Another descriptor of it; `None` when it is gone.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn duplicate(&self) -> io::Result<Option<OwnedFd>> {
        let socket = self.0.upgrade();
        let fd = socket.map(|socket| socket.listener.as_fd().try_clone_to_owned());
        fd.transpose()
    }

    /// Whether it stays in its folder when it is dropped, since another process listens on it as well.
    pub fn leave(&self, left: bool) {
        if let Some(socket) = self.0.upgrade() {
            socket.left.store(left, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Bound {
    path: PathBuf,
    /// Device and inode of our socket: what is there later may be somebody else's.
    identity: (u64, u64),
}

impl Listener {
    /// Listens on a path, for whoever may write there. A socket that nobody answers on any more is replaced, a
    /// live one is not.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_for(path, Peers::AsUmask)
    }

    /// The same for these peers. At no time can others connect.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_for(path: &Path, peers: Peers) -> Result<Self, BindError> {
        let failed = |error| BindError::Bind {
            path: path.to_owned(),
            error,
        };
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(BindError::NotASocket(path.to_owned()));
            }
            Ok(_) => match probe(path) {
                Ok(Who::Us) => return Err(BindError::Own(path.to_owned())),
                // Also with a full backlog somebody listens.
                Ok(Who::Another) | Err(Errno::AGAIN) => {
                    return Err(BindError::Live(path.to_owned()));
                }
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed)?,
                Err(error) => return Err(failed(error.into())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = match peers.mode() {
            None => UnixListener::bind(path),
            Some(mode) => bind_with_mode(path, mode),
        };
        let listener = listener.map_err(failed)?;
        let bound = Bound::at(path).map_err(failed)?;
        Ok(Self::new(listener, peers, Some(bound), false))
    }

    fn new(listener: UnixListener, peers: Peers, bound: Option<Bound>, left: bool) -> Self {
        Listener {
            socket: Arc::new(Socket {
                listener,
                bound,
                left: AtomicBool::new(left),
            }),
            peers,
        }
    }

    /// Goes on with a socket that another process listens on; `path` is where it was bound, if it was. It stays there when
    /// this is dropped, until [`Known::leave`] says otherwise.
    #[must_use]
    pub fn take_over(fd: OwnedFd, path: Option<&Path>, peers: Peers) -> Self {
        let bound = path.and_then(|path| Bound::at(path).ok());
        Self::new(UnixListener::from(fd), peers, bound, true)
    }

    /// To know it when it has gone elsewhere.
    #[must_use]
    pub fn known(&self) -> Known {
        Known(Arc::downgrade(&self.socket))
    }

    /// Takes over a descriptor that was inherited listening, for instance from systemd.
    ///
    /// # Errors
    /// [`BindError::NotListening`].
    ///
    /// # Safety
    /// Nobody else in this process uses the descriptor.
    pub unsafe fn inherit(fd: RawFd) -> Result<Self, BindError> {
        let wrong = |found: String| BindError::NotListening { fd, found };
        if (0..=2).contains(&fd) {
            return Err(wrong("it is standard input, output or error".into()));
        }
        if fd < 0 || rustix::io::fcntl_getfd(unsafe_borrow(&fd)).is_err() {
            return Err(wrong("it is not open".into()));
        }
        // SAFETY: it is open, and our caller says that it is nobody else's.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = owned.as_fd();
        match sockopt::socket_domain(socket) {
            Ok(AddressFamily::UNIX) => {}
            Ok(_) => return Err(wrong("it is a socket of another family".into())),
            Err(_) => return Err(wrong("it is no socket".into())),
        }
        if sockopt::socket_acceptconn(socket) != Ok(true) {
            return Err(wrong("it does not listen".into()));
        }
        // Children have no business with it.
        let _ = rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC);
        let listener = UnixListener::from(owned);
        Ok(Self::new(listener, Peers::AsUmask, None, false))
    }

    /// From now on these peers are served. (Who may connect to a socket that was inherited is said by whoever made it.)
    #[must_use]
    pub fn for_peers(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Somebody who has connected; `None` if they may not.
    ///
    /// # Errors
    /// Those of accept(2).
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.socket.listener.accept()?;
        Ok(self.peers.admit(&stream).then_some(stream))
    }

    /// The socket itself.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket.listener
    }
}

impl Bound {
    /// What is there now.
    fn at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        // A daemon leaves its folder, and still has to find the socket to remove it.
        let path = std::path::absolute(path)?;
        Ok(Bound { path, identity })
    }
}

/// A socket has the mode that its descriptor had when it was bound, less the umask (unix_bind in the kernel); there is
/// no moment with another one.
fn bind_with_mode(path: &Path, mode: Mode) -> io::Result<UnixListener> {
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

/// As many as the system lets wait.
const BACKLOG: i32 = -1;

/// Who listens on a socket.
enum Who {
    Us,
    Another,
}

/// Whether somebody answers on a socket, without waiting for them, and who.
fn probe(path: &Path) -> rustix::io::Result<Who> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // Of the process that called listen(2).
    let is_us =
        sockopt::socket_peercred(&socket).is_ok_and(|peer| peer.pid == rustix::process::getpid());
    Ok(if is_us { Who::Us } else { Who::Another })
}

fn unsafe_borrow(fd: &RawFd) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: only asked whether it is open; it is not -1, which the type forbids.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.left.load(Ordering::Relaxed)
            && let Some(Bound { path, identity }) = &self.bound
            && let Ok(metadata) = std::fs::symlink_metadata(path)
            && (metadata.dev(), metadata.ino()) == *identity
        {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test that cannot go on fails where it is
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_of_ones_own_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = Listener::bind_for(&path, Peers::User).unwrap();
        let permissions = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
    }

    #[test]
    fn only_users_that_may_are_served() {
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
            let bound = Listener::bind_for(&path, Peers::Users(users.clone())).unwrap();
            let client = UnixStream::connect(&path).unwrap();
            assert_eq!(bound.accept().unwrap().is_some(), served, "{users:?}");
            drop(client);

            let path = folder.path().join(format!("inherited {index}"));
            let fd = OwnedFd::from(UnixListener::bind(&path).unwrap());
            // SAFETY: it is given away.
            let inherited = unsafe { Listener::inherit(fd.into_raw_fd()) }.unwrap();
            let inherited = inherited.for_peers(Peers::Users(users));
            let _client = UnixStream::connect(&path).unwrap();
            assert_eq!(inherited.accept().unwrap().is_some(), served);
        }
    }
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

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
        let known = first.known();
        let fd = known.duplicate().unwrap().unwrap();
        let second = Listener::take_over(fd, Some(&path), Peers::User);
        let of_second = second.known();
        // A new owner that fails leaves it to the first.
        drop(second);
        assert!(!of_second.is_open());
        UnixStream::connect(&path).unwrap();
        let fd = known.duplicate().unwrap().unwrap();
        let second = Listener::take_over(fd, Some(&path), Peers::User);
        known.leave(true);
        drop(first);
        assert!(!known.is_open() && known.duplicate().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(second.accept().unwrap().is_some());
        second.known().leave(false);
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
