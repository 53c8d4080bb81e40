//! The cluster of tests: images survive its daemons, users are limited, and nothing is left behind.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

use std::env;
use std::fs;
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

const IMAGE_BYTES: usize = 8 << 20;

#[test]
fn image_survives_a_killed_osd_and_a_restarted_monitor() {
    let options = ClusterOptions {
        store: ObjectStore::BlueStore,
        auth: Auth::Cephx,
        manager: false,
        watch_timeout: 5,
    };
    let Some(mut cluster) = Cluster::start_or_report(options) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..IMAGE_BYTES)
        .map(|n| (n % 251).to_le_bytes()[0])
        .collect();
    let [written, read] = ["written", "read"].map(|name| folder.path().join(name));
    fs::write(&written, &content).unwrap();
    cluster.rbd(["import", path(&written), "rbd/disk"]);

    cluster.kill_osd();
    cluster.start_osd();
    cluster.restart_monitor();

    cluster.rbd(["export", "rbd/disk", path(&read)]);
    assert!(fs::read(&read).unwrap() == content, "another content");
}

#[test]
fn daemons_outlive_the_thread_that_started_them() {
    let name = thread::current().name().unwrap().to_owned();
    let starter = thread::Builder::new().name(name);
    let starter = starter.spawn(|| Cluster::start_or_report(IN_MEMORY));
    let Some(cluster) = starter.unwrap().join().unwrap() else {
        return;
    };
    cluster.create_image("disk", 1 << 20);
    assert_eq!(cluster.rbd(["ls"]), "disk\n");
}

#[test]
fn paused_daemons_do_not_run_until_they_are_resumed() {
    let Some(mut cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    let [monitor, osd] = cluster.pids()[..] else {
        panic!("{:?}", cluster.pids());
    };
    cluster.pause_osd();
    cluster.pause_monitor();
    eventually("both are stopped", || {
        is_stopped(monitor) && is_stopped(osd)
    });
    cluster.resume_monitor();
    cluster.resume_osd();
    cluster.create_image("disk", 1 << 20);
    assert!(!is_stopped(monitor) && !is_stopped(osd));
}

#[test]
fn user_reaches_its_own_pool_only() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_pool("own");
    cluster.create_pool("other");
    for pool in ["own", "other"] {
        cluster.create_image(&format!("{pool}/disk"), 1 << 20);
    }
    let capabilities = [("mon", "profile rbd"), ("osd", "profile rbd pool=own")];
    let key = cluster.create_user("limited", &capabilities);
    assert_eq!(key, cluster.key("limited"));
    assert_ne!(key, cluster.key("admin"));

    assert_eq!(cluster.rbd(["--id", "limited", "ls", "own"]), "disk\n");
    let other = Command::new("rbd")
        .arg("--conf")
        .arg(cluster.conf())
        .args(["--id", "limited", "ls", "other"])
        .output();
    let other = other.unwrap();
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(
        !other.status.success() && error.contains("not permitted"),
        "{error}"
    );
}

#[test]
fn full_pool_is_noticed_by_the_manager() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    cluster.create_pool("small");
    cluster.ceph(["osd", "pool", "set-quota", "small", "max_bytes", "4096"]);
    cluster.create_image("small/disk", 1 << 20);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    cluster.rbd(["import", path(&file), "small/filled"]);
    eventually("the pool is full", || {
        let pools = cluster.ceph(["osd", "pool", "ls", "detail"]);
        let pool = pools.lines().find(|line| line.contains("'small'"));
        pool.unwrap().contains("full_quota")
    });
}

#[test]
fn nothing_is_left_of_a_dropped_cluster() {
    let Some(mut cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    // Stopped processes do not react to anything but SIGKILL.
    cluster.pause_osd();
    let left = Left::of(&cluster.conf(), &cluster.pids());
    drop(cluster);
    left.assert_nothing();
}

/// Set in the process that is killed.
const KILLED: &str = "BLOCKPLANE_TEST_KILLED_WITH_CLUSTER";
/// Begins the line with its cluster's configuration file and processes.
const READY: &str = "ready:";

#[test]
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
        .args(["--exact", &name, "--nocapture"])
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

fn is_stopped(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().any(|line| line.starts_with("State:\tT"))
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
