//! A process that serves: one that was started here, or one that has taken over from it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Error, Result};
use crate::server::Server;

/// The process that serves now.
#[derive(Debug)]
pub(crate) enum Running {
    Ours(Child),
    /// Nobody tells us how it ends.
    Successor {
        id: u32,
        fd: OwnedFd,
    },
}

impl Running {
    /// Another process of this number.
    pub fn successor(id: u32) -> io::Result<Self> {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other(format!("{id} is no process")))?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Running::Successor { id, fd })
    }

    pub fn id(&self) -> u32 {
        match self {
            Running::Ours(child) => child.id(),
            Running::Successor { id, .. } => *id,
        }
    }

    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Running::Ours(child) => child.try_wait(),
            Running::Successor { fd, .. } => has_ended(fd, Some(&Timespec::default())),
        }
    }

    pub fn wait(&mut self) -> io::Result<()> {
        match self {
            Running::Ours(child) => child.wait().map(drop),
            Running::Successor { fd, .. } => has_ended(fd, None).map(drop),
        }
    }

    pub fn kill(&mut self) -> io::Result<()> {
        match self {
            Running::Ours(child) => child.kill(),
            Running::Successor { fd, .. } => Ok(pidfd_send_signal(fd, Signal::KILL)?),
        }
    }
}

fn has_ended(fd: &OwnedFd, timeout: Option<&Timespec>) -> io::Result<Option<ExitStatus>> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let ended = rustix::io::retry_on_intr(|| poll(&mut fds, timeout))?;
    Ok((ended > 0).then(ExitStatus::default))
}

impl Server {
    /// Lets another process of the same program go on; its own has ended well then. Wants a monitor.
    ///
    /// # Errors
    /// [`Error::Server`] if it is refused, [`Error::Io`].
    pub fn upgrade(&self) -> Result<()> {
        let before = self.id();
        let reply = self.query("upgrade", "{}")?;
        let number = reply.split(r#""pid":"#).nth(1).unwrap_or_default();
        let number = number.trim_start();
        let number = number.split(|char: char| !char.is_ascii_digit()).next();
        let id = number.and_then(|number| number.parse().ok());
        let id = id.ok_or_else(|| self.failed(format!("what does {reply} mean?")))?;
        let successor = Running::successor(id).map_err(Error::io("look at the new server"))?;
        let mut old = std::mem::replace(&mut *self.child(), successor);
        old.wait().map_err(Error::io("wait for the server"))?;
        match old.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            ended => Err(self.failed(format!("process {before} did not end well: {ended:?}"))),
        }
    }
}
