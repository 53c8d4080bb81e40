//! Sockets that we were started with: by their number, or by the name that the service manager gave
//! them (`LISTEN_FDS`, `LISTEN_PID`, `LISTEN_FDNAMES`). Each is given away once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use options::SocketAddr;
use unix_socket::listener::{Listener, Peers, WeakListener};

use crate::failure::Failure;

/// The first descriptor that a service manager hands over.
const FIRST: RawFd = 3;

/// What was handed over.
#[derive(Default)]
pub(crate) struct Inherited {
    named: Vec<(String, RawFd)>,
    /// Descriptors are numbers, and numbers come back: one that was given away is never meant again.
    given_away: HashSet<RawFd>,
    /// What the process before listened on, and nobody has asked for yet.
    handed: Vec<(SocketAddr, OwnedFd)>,
    /// What is listened on, whoever has it.
    listening: Vec<(SocketAddr, WeakListener)>,
}

impl Inherited {
    /// From the variables. What is meant for another process is not ours.
    pub(crate) fn new(
        fds: Option<OsString>,
        pid: Option<OsString>,
        names: Option<OsString>,
    ) -> Result<Self, Failure> {
        let mut inherited = Inherited::default();
        let Some(fds) = fds else { return Ok(inherited) };
        if pid.is_none_or(|pid| pid != *std::process::id().to_string()) {
            return Ok(inherited);
        }
        let end = fds.to_str().and_then(|fds| fds.parse::<u16>().ok());
        let Some(end) = end.map(|count| FIRST + RawFd::from(count)) else {
            let shown = fds.to_string_lossy();
            return Err(format!(
                "LISTEN_FDS cannot be '{shown}': a number of descriptors is expected"
            )
            .into());
        };
        for fd in FIRST..end {
            // SAFETY: only a flag of it is set, and that fails if it is not open.
            let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
            // Children have no business with it.
            let _ = rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC);
        }
        if let Some(names) = names.as_deref().map(|names| names.to_string_lossy()) {
            inherited.named = names
                .split(':')
                .map(str::to_owned)
                .zip(FIRST..end)
                .collect();
        }
        Ok(inherited)
    }

    /// From now on these stand for what they are called.
    pub fn hand(&mut self, sockets: Vec<(SocketAddr, OwnedFd)>) {
        for (addr, fd) in sockets {
            if let SocketAddr::Fd { fd: number } = addr {
                // In this process the number is something else's.
                self.given_away.insert(number);
            }
            self.handed.push((addr, fd));
        }
    }

    /// A socket to listen on: one that is there, or a new one at a path.
    pub fn listen(&mut self, addr: &SocketAddr, peers: Peers) -> Result<Listener, Failure> {
        let handed = self.handed.iter().position(|(known, _)| known == addr);
        let listener = match (handed, addr) {
            (Some(index), _) => {
                let (_, fd) = self.handed.swap_remove(index);
                let path = match addr {
                    SocketAddr::Unix { path } => Some(&**path),
                    SocketAddr::Fd { .. } | SocketAddr::FdName { .. } => None,
                };
                Listener::take_over(fd, path, peers)
            }
            (None, SocketAddr::Unix { path }) => Listener::bind_for(path, peers)?,
            (None, SocketAddr::Fd { fd }) => self.numbered(*fd)?.for_peers(peers),
            (None, SocketAddr::FdName { name }) => self.named(name)?.for_peers(peers),
        };
        self.listening.retain(|(_, known)| known.is_open());
        self.listening.push((addr.clone(), listener.downgrade()));
        Ok(listener)
    }

    /// Whether sockets stay when they are closed here: another process listens on them as well.
    pub fn leave(&self, left: bool) {
        for (_, known) in &self.listening {
            known.set_keep_path(left);
        }
    }

    /// Another descriptor of each, also of those that nobody has asked for yet.
    pub fn duplicate(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        let mut all = Vec::new();
        for (addr, known) in &self.listening {
            if let Some(fd) = known.duplicate()? {
                all.push((addr.clone(), fd));
            }
        }
        for (addr, fd) in &self.handed {
            all.push((addr.clone(), fd.try_clone()?));
        }
        let unused = self.named.iter();
        for (name, fd) in unused.filter(|(_, fd)| !self.given_away.contains(fd)) {
            // SAFETY: it was handed over for us, and nobody has closed it since: it was not given away.
            let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
            let name = name.clone();
            all.push((SocketAddr::FdName { name }, fd.try_clone_to_owned()?));
        }
        Ok(all)
    }

    /// The socket with a name.
    fn named(&mut self, name: &str) -> Result<Listener, Failure> {
        let mut found = self.named.iter().filter(|(known, _)| known == name);
        match (found.next(), found.next()) {
            (Some((_, fd)), None) => {
                let fd = *fd;
                self.numbered(fd)
            }
            (Some(_), Some(_)) => Err(format!(
                "several descriptors are named '{name}': give each socket its own name (FileDescriptorName= of \
                 systemd.socket(5)), or write its number"
            )
            .into()),
            (None, _) => Err(self.unknown(name).into()),
        }
    }

    /// The socket with a number.
    fn numbered(&mut self, fd: RawFd) -> Result<Listener, Failure> {
        if self.given_away.contains(&fd) {
            return Err(format!(
                "descriptor {fd} is used already: each socket serves one export or one monitor"
            )
            .into());
        }
        // SAFETY: the number is the user's word for a socket that was made for us, and it was not given
        // away before; nothing else in this process has it, since everything else is opened without
        // giving numbers away.
        let listener = unsafe { Listener::inherit(fd) }?;
        self.given_away.insert(fd);
        Ok(listener)
    }

    fn unknown(&self, name: &str) -> String {
        if self.named.is_empty() {
            return format!(
                "no descriptor is named '{name}': no named sockets were handed over; start it by a .socket unit with \
                 FileDescriptorName={name}, or name a path (addr.type=unix,addr.path=PATH)"
            );
        }
        let known: Vec<&str> = self.named.iter().map(|(name, _)| &**name).collect();
        format!(
            "no descriptor is named '{name}': those that were handed over are {}",
            known.join(", ")
        )
    }
}
