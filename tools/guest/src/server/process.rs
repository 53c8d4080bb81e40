//! The process of a server: a child, or its successor after a live upgrade.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The current process of a server.
#[derive(Debug)]
pub(super) enum ServerProcess {
    /// A child of this process.
    Child(Child),
    /// A process that a live upgrade started. It is no child of ours, so its exit status is unknown.
    Successor { id: u32, fd: OwnedFd },
}

impl ServerProcess {
    /// The process with this id, which is no child.
    pub fn successor(id: u32) -> io::Result<Self> {
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other(format!("{id} is no process")))?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(ServerProcess::Successor { id, fd })
    }

    pub fn id(&self) -> u32 {
        match self {
            ServerProcess::Child(child) => child.id(),
            ServerProcess::Successor { id, .. } => *id,
        }
    }

    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            ServerProcess::Child(child) => child.try_wait(),
            ServerProcess::Successor { fd, .. } => has_ended(fd, Some(&Timespec::default())),
        }
    }

    pub fn wait(&mut self) -> io::Result<()> {
        match self {
            ServerProcess::Child(child) => child.wait().map(drop),
            ServerProcess::Successor { fd, .. } => has_ended(fd, None).map(drop),
        }
    }

    pub fn kill(&mut self) -> io::Result<()> {
        match self {
            ServerProcess::Child(child) => child.kill(),
            ServerProcess::Successor { fd, .. } => Ok(pidfd_send_signal(fd, Signal::KILL)?),
        }
    }
}

fn has_ended(fd: &OwnedFd, timeout: Option<&Timespec>) -> io::Result<Option<ExitStatus>> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let ended = rustix::io::retry_on_intr(|| poll(&mut fds, timeout))?;
    Ok((ended > 0).then(ExitStatus::default))
}
