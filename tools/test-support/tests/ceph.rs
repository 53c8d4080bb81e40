//! Nothing is left of a cluster whose test is killed.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

use std::env;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};
use test_support::deadline::{Deadline, eventually};
use test_support::events::becomes_readable;
use test_support::process::Process;

/// The quickest to start.
const IN_MEMORY: ClusterOptions = ClusterOptions {
    store: ObjectStore::MemStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

/// Set in the process that is killed.
const KILLED: &str = "BLOCKPLANE_TEST_KILLED_WITH_CLUSTER";
/// Begins the line with its cluster's configuration file and processes.
const READY: &str = "ready:";

#[test]
#[ignore = "full run only"]
fn nothing_is_left_of_a_cluster_whose_process_is_killed() {
    let Some(cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    if env::var_os(KILLED).is_some() {
        let pids: Vec<_> = cluster.pids().iter().map(Pid::to_string).collect();
        println!("\n{READY} {} {}", cluster.conf().display(), pids.join(" "));
        loop {
            thread::park();
        }
    }
    drop(cluster);
    let name = thread::current().name().unwrap().to_owned();
    let mut again = Command::new(env::current_exe().unwrap());
    again
        .args(["--exact", &name, "--nocapture", "--include-ignored"])
        .env(KILLED, "1");
    let mut again = Process::spawn(again);
    let deadline = Deadline::default();
    let left = loop {
        again.assert_running("a cluster");
        if let Some(cluster) = again
            .stdout()
            .lines()
            .find_map(|line| line.strip_prefix(READY))
        {
            let mut words = cluster.split_whitespace();
            let conf = Path::new(words.next().unwrap());
            let pids = words.map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
            break Left::of(conf, &pids.collect::<Vec<_>>());
        }
        deadline.pause("a cluster");
    };
    drop(again);
    left.assert_nothing();
}

/// What must not be left: the folder and processes of a cluster.
struct Left {
    folder: PathBuf,
    processes: Vec<OwnedFd>,
}

impl Left {
    fn of(conf: &Path, pids: &[Pid]) -> Self {
        let open = |pid: &Pid| pidfd_open(*pid, PidfdFlags::empty()).unwrap();
        Left {
            folder: conf.parent().unwrap().to_owned(),
            processes: pids.iter().map(open).collect(),
        }
    }

    fn assert_nothing(&self) {
        for process in &self.processes {
            assert!(becomes_readable(process), "a daemon runs");
        }
        eventually("the folder is removed", || !self.folder.exists());
    }
}
