//! Programs that administer a cluster: `ceph` and `rbd`, with a deadline.

use std::ffi::OsStr;
use std::process::Command;

use super::conf::CLIENT_CONF;
use super::folder::ClusterFolder;
use super::{Cluster, daemon};
use crate::deadline::Deadline;
use crate::process::Process;

impl Cluster {
    /// Runs `ceph` with these arguments, as the administrator, and returns its standard output.
    ///
    /// # Panics
    /// If it fails, or does not end in time; the message has the end of each daemon's log.
    #[track_caller]
    pub fn ceph<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        self.run_client("ceph", args)
    }

    /// Runs `rbd` with these arguments, as the administrator unless they have `--id`, and returns its standard output.
    ///
    /// # Panics
    /// If it fails, or does not end in time; the message has the end of each daemon's log.
    #[track_caller]
    pub fn rbd<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        self.run_client("rbd", args)
    }

    #[track_caller]
    fn run_client<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> String {
        let mut command = daemon::command(program, &self.folder.join(CLIENT_CONF));
        command.args(args);
        run(command, &self.folder)
    }
}

/// Runs a command until it ends, and returns its standard output.
#[track_caller]
pub(super) fn run(command: Command, folder: &ClusterFolder) -> String {
    let what = format!("{command:?}");
    let mut process = Process::spawn(command);
    let deadline = Deadline::default();
    while process.is_running() {
        let said = process.stderr();
        deadline.pause(format_args!("{what} ends; {said}{}", folder.logs()));
    }
    let output = process.ended();
    let logs = folder.logs();
    assert_eq!(output.code, Some(0), "{what}: {}{logs}", output.stderr);
    output.stdout
}
