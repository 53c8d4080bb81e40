//! All listening Unix sockets of the process: those that it inherits from the service manager, a parent process or, in a live
//! upgrade, the predecessor, and those that it binds itself. Inherited ones are found by number, or by name (`LISTEN_FDS`,
//! `LISTEN_PID`, `LISTEN_FDNAMES`), and can be used once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use options::SocketAddr;
use unix_socket::listener::{AllowedPeers, Listener, WeakListener};

use crate::error::BoxError;

/// First descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const LISTEN_FDS_START: RawFd = 3;

/// Descriptors up to here are found when they are passed to the process: as many as a process may have by default.
const MAX_INHERITED_FD: RawFd = 1023;

/// The descriptors that were passed to this process at its start, without standard input, output and error. All others have
/// `FD_CLOEXEC`: those that the parent kept for itself, and those that this process has opened. To be called before descriptors
/// that were passed get that flag, too.
pub(super) fn find_inherited_fds() -> Vec<RawFd> {
    let is_inherited = |fd: &RawFd| {
        // SAFETY: it is only used to query a flag, which fails if it is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(*fd) };
        rustix::io::fcntl_getfd(borrowed)
            .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
    };
    (LISTEN_FDS_START..=MAX_INHERITED_FD)
        .filter(is_inherited)
        .collect()
}

/// Inherited sockets, and the sockets that are in use.
#[derive(Default)]
pub(crate) struct InheritedAndUsedSockets {
    /// Sockets of the service manager, by their names.
    named_fds: Vec<(String, RawFd)>,
    /// Descriptors that were open when the process started, and were not used yet. All others belong to values of this
    /// process, and the kernel reuses numbers: none is added later.
    unused_numbers: HashSet<RawFd>,
    /// Sockets of the predecessor that are not in use yet.
    handed_over: Vec<(SocketAddr, OwnedFd)>,
    /// All sockets in use, inherited or not.
    sockets_in_use: Vec<(SocketAddr, WeakListener)>,
}

impl InheritedAndUsedSockets {
    /// Reads the values of the service manager's variables; ignores them if they are for another process. `inherited_fds` are
    /// the descriptors that the process was started with.
    pub(crate) fn from_listen_variables(
        fds: Option<OsString>,
        pid: Option<OsString>,
        names: Option<OsString>,
        inherited_fds: &[RawFd],
    ) -> Result<Self, BoxError> {
        let mut inherited = InheritedAndUsedSockets {
            unused_numbers: inherited_fds.iter().copied().collect(),
            ..InheritedAndUsedSockets::default()
        };
        let Some(fds) = fds else { return Ok(inherited) };
        if pid.is_none_or(|pid| pid != *std::process::id().to_string()) {
            return Ok(inherited);
        }
        let count = fds.to_str().and_then(|fds| fds.parse::<u16>().ok());
        let Some(end) = count.map(|count| LISTEN_FDS_START + RawFd::from(count)) else {
            let shown = fds.to_string_lossy();
            return Err(format!(
                "LISTEN_FDS cannot be '{shown}': a number of descriptors is expected"
            )
            .into());
        };
        for fd in LISTEN_FDS_START..end {
            // SAFETY: it is only used to set a flag, which fails if it is not open.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            // Children must not inherit it.
            let _ = rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC);
        }
        if let Some(names) = names.as_deref().map(|names| names.to_string_lossy()) {
            inherited.named_fds = names
                .split(':')
                .map(str::to_owned)
                .zip(LISTEN_FDS_START..end)
                .collect();
        }
        Ok(inherited)
    }

    /// Adds sockets that the predecessor listened on, by their addresses.
    pub fn add_handed_over(&mut self, sockets: Vec<(SocketAddr, OwnedFd)>) {
        for (addr, fd) in sockets {
            self.handed_over.push((addr, fd));
        }
    }

    /// A socket that listens on an address: an inherited one, or a new one for a path.
    pub fn take_or_bind_listener(
        &mut self,
        addr: &SocketAddr,
        peers: AllowedPeers,
    ) -> Result<Listener, BoxError> {
        let handed_over = self.handed_over.iter().position(|(known, _)| known == addr);
        let listener = match (handed_over, addr) {
            (Some(index), _) => {
                let (_, fd) = self.handed_over.swap_remove(index);
                let path = match addr {
                    SocketAddr::Unix { path } => Some(&**path),
                    SocketAddr::Fd { .. } | SocketAddr::FdName { .. } => None,
                };
                Listener::take_over(fd, path, peers)
            }
            (None, SocketAddr::Unix { path }) => Listener::bind_for_peers(path, peers)?,
            (None, SocketAddr::Fd { fd }) => self.take_by_fd_number(*fd)?.with_peers(peers),
            (None, SocketAddr::FdName { name }) => self.take_by_name(name)?.with_peers(peers),
        };
        self.sockets_in_use.retain(|(_, known)| known.is_open());
        self.sockets_in_use
            .push((addr.clone(), listener.downgrade()));
        Ok(listener)
    }

    /// Sets whether closing sockets leaves their files in place, since another process listens on them as well.
    pub fn set_keep_socket_files_on_close(&self, keep: bool) {
        for (_, known) in &self.sockets_in_use {
            known.set_keep_path(keep);
        }
    }

    /// Duplicates the descriptors of all sockets, including those that are not in use yet.
    pub fn duplicate_all(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let mut all = Vec::new();
        for (addr, known) in &self.sockets_in_use {
            if let Some(fd) = known.duplicate()? {
                all.push((addr.clone(), fd));
            }
        }
        for (addr, fd) in &self.handed_over {
            all.push((addr.clone(), fd.try_clone()?));
        }
        let named = self.named_fds.iter();
        for (name, fd) in named.filter(|(_, fd)| self.unused_numbers.contains(fd)) {
            // SAFETY: it was passed to this process, and is still open since it was never used.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            let name = name.clone();
            all.push((SocketAddr::FdName { name }, fd.try_clone_to_owned()?));
        }
        Ok(all)
    }

    /// Takes the socket that the service manager gave this name.
    fn take_by_name(&mut self, name: &str) -> Result<Listener, BoxError> {
        let mut found = self.named_fds.iter().filter(|(known, _)| known == name);
        match (found.next(), found.next()) {
            (Some((_, fd)), None) => {
                let fd = *fd;
                self.take_by_fd_number(fd)
            }
            (Some(_), Some(_)) => Err(format!(
                "several descriptors are named '{name}': give each socket its own name (FileDescriptorName= of \
                 systemd.socket(5)), or use its number"
            )
            .into()),
            (None, _) => Err(self.unknown_name_error(name).into()),
        }
    }

    /// Takes the socket with this descriptor number.
    fn take_by_fd_number(&mut self, fd: RawFd) -> Result<Listener, BoxError> {
        if !self.unused_numbers.contains(&fd) {
            return Err(format!(
                "descriptor {fd} was not passed to the daemon at its start, or is already in use: each socket serves one \
                 export or one monitor"
            )
            .into());
        }
        // SAFETY: the descriptor was open before this process opened anything, and it was not taken before: nothing else in
        // this process owns it.
        let listener = unsafe { Listener::inherit(fd) }?;
        self.unused_numbers.remove(&fd);
        Ok(listener)
    }

    /// The error for a name that no inherited socket has.
    fn unknown_name_error(&self, name: &str) -> String {
        if self.named_fds.is_empty() {
            return format!(
                "no descriptor is named '{name}': no named sockets were inherited; start the daemon with a .socket unit \
                 with FileDescriptorName={name}, or use a path (addr.type=unix,addr.path=PATH)"
            );
        }
        let known: Vec<&str> = self.named_fds.iter().map(|(name, _)| &**name).collect();
        format!(
            "no descriptor is named '{name}': inherited sockets are {}",
            known.join(", ")
        )
    }
}
