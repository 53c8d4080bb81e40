//! Processes of daemons, which end with the process of the test however that ends.
//!
//! The kernel kills them then (`PR_SET_PDEATHSIG`, by setpriv(1)). It does so when the *thread* that started them ends, and a test has a
//! thread of its own: one that lives as long as the process starts all of them.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

use super::conf::DAEMON_CONF;
use super::folder::ClusterFolder;
use crate::process::Process;

/// A daemon of the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) enum Daemon {
    Monitor,
    Osd,
    Manager,
}

impl Daemon {
    /// Its program.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Daemon::Monitor => "ceph-mon",
            Daemon::Osd => "ceph-osd",
            Daemon::Manager => "ceph-mgr",
        }
    }

    /// Its kind and id.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Daemon::Monitor => "mon.a",
            Daemon::Osd => "osd.0",
            Daemon::Manager => "mgr.x",
        }
    }
}

/// A command of a cluster, which ends when the calling thread does.
pub(super) fn command(program: &str, conf: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program, "--conf"]);
    command.arg(conf).env_remove("CEPH_ARGS");
    // Ctrl-C ends the test, and thereby this.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.stdin(std::process::Stdio::null());
    command
}

/// The command that makes a daemon's store, or with `-f` runs the daemon.
pub(super) fn daemon_command(daemon: Daemon, folder: &ClusterFolder) -> Command {
    let mut command = command(daemon.program(), &folder.join(DAEMON_CONF));
    command.args(["--name", daemon.name()]);
    // Debian 13's OSD looks for its classes in lib/…, relative to where it runs.
    command.current_dir("/");
    command
}

/// Starts a daemon.
#[track_caller]
pub(super) fn spawn(daemon: Daemon, folder: &ClusterFolder) -> Process {
    static SPAWNER: LazyLock<Sender<(Command, SyncSender<Process>)>> = LazyLock::new(|| {
        let (sender, commands) = channel::<(Command, SyncSender<Process>)>();
        let spawn_all = move || {
            for (command, reply) in commands {
                // Fails if the test has failed meanwhile.
                let _ = reply.send(Process::spawn(command));
            }
        };
        let thread = thread::Builder::new().name("ceph daemons".to_owned());
        thread.spawn(spawn_all).unwrap();
        sender
    });
    let mut command = daemon_command(daemon, folder);
    command.arg("-f");
    let (reply, spawned) = sync_channel(1);
    SPAWNER.send((command, reply)).unwrap();
    spawned.recv().unwrap()
}
