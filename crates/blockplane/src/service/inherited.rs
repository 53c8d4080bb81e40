//! Sockets that we were started with: by their number, or by the name that the service manager gave
//! them (`LISTEN_FDS`, `LISTEN_PID`, `LISTEN_FDNAMES`). Each is given away once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, RawFd};

use listener::Listener;

use crate::Failure;

/// The first descriptor that a service manager hands over.
const FIRST: RawFd = 3;

/// What was handed over.
#[derive(Default)]
pub(crate) struct Inherited {
    named: Vec<(String, RawFd)>,
    /// Descriptors are numbers, and numbers come back: one that was given away is never meant again.
    given_away: HashSet<RawFd>,
}

impl Inherited {
    /// From the variables. What is meant for another process is not ours.
    pub(super) fn new(
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

    /// The socket with a name.
    pub fn named(&mut self, name: &str) -> Result<Listener, Failure> {
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
    pub fn numbered(&mut self, fd: RawFd) -> Result<Listener, Failure> {
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
