//! The folder of a cluster, which is removed also when the process of the test is killed.

use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use crate::process::await_killed;

/// A shell that waits until nothing can write to its standard input, then removes the folder. Daemons may still be ending, and
/// writing, at that time: it tries again for ten seconds.
const REMOVER: &str = "read -r _; n=0; until rm -rf \"$0\"; do \
    n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.1; done";

/// How many lines of each log a failure shows.
const SHOWN_LINES: usize = 20;

/// The folder of a cluster's configuration, data and logs.
#[derive(Debug)]
pub(super) struct ClusterFolder {
    path: PathBuf,
    remover: Child,
}

impl ClusterFolder {
    /// An empty one: in `TMPDIR`, or else in `/var/tmp`, since BlueStore needs direct I/O, which not every tmpfs has.
    pub(super) fn new() -> Self {
        let parent = std::env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into());
        let mut folder = tempfile::Builder::new();
        let folder = folder.prefix("blockplane-ceph-").tempdir_in(parent);
        let path = folder.unwrap().keep();
        let mut remover = Command::new("/bin/sh");
        remover.arg("-c").arg(REMOVER).arg(&path);
        remover.stdin(Stdio::piped());
        remover.stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C does not end it.
        std::os::unix::process::CommandExt::process_group(&mut remover, 0);
        let remover = remover.spawn().unwrap();
        ClusterFolder { path, remover }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The end of each daemon's log, read when it is printed.
    pub(super) fn logs(&self) -> Logs<'_> {
        Logs(&self.path)
    }
}

impl Drop for ClusterFolder {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        await_killed(Pid::from_child(&self.remover));
        let _ = self.remover.try_wait();
    }
}

/// The end of each daemon's log.
pub(super) struct Logs<'a>(&'a Path);

impl Display for Logs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in fs::read_dir(self.0).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let log = fs::read(&path).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            write!(f, "\n{}:\n{}", path.display(), end.join("\n"))?;
        }
        Ok(())
    }
}
