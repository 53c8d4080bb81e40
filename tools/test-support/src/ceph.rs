//! A Ceph cluster on 127.0.0.1 for tests: Debian's monitor, OSD and manager, one of each, in a temporary folder.
//!
//! It needs no rights and no configuration of the machine; `x` installs the packages. A cluster starts in 3 to 10 seconds, so tests of
//! one binary [share](Cluster::shared_or_report) one, each with pools and images of its own. A test that stops a daemon has its own
//! cluster: those methods need it exclusively. The daemons end with the [`Cluster`], and also when the test's process is killed.

mod commands;
mod conf;
mod daemon;
mod folder;
mod keyring;
mod start;

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use rustix::process::{Pid, Signal};

use crate::deadline::Deadline;
use crate::process::Process;
use crate::reserved_port::ReservedPort;
use conf::CLIENT_CONF;
use daemon::Daemon;
use folder::ClusterFolder;
use keyring::CLIENT_KEYRING;

/// Where the OSD keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStore {
    /// In its memory: quicker, but lost when the OSD ends.
    MemStore,
    /// In a sparse file of 10 GiB.
    BlueStore,
}

/// How clients and daemons prove their identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Not at all: there are no keys.
    None,
    /// By secret keys.
    Cephx,
}

/// The kind of cluster to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Where the OSD keeps its objects.
    pub store: ObjectStore,
    /// How clients prove their identity.
    pub auth: Auth,
    /// With a manager: quotas and usage need it, requests do not.
    pub manager: bool,
    /// Seconds after which a dead client's watches end, and its locks may be broken.
    pub watch_timeout: u32,
}

/// A running cluster with a pool `rbd`.
#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    monitor: Process,
    /// `None` after it was killed.
    osd: Option<Process>,
    manager: Option<Process>,
    port: ReservedPort,
    // Dropped after the daemons, which write there.
    folder: ClusterFolder,
}

impl Cluster {
    /// Starts a cluster, or [reports](crate::report::not_run) that the calling test does not run because a program is missing.
    ///
    /// # Panics
    /// If a daemon does not start in time; the message has the end of each log.
    #[must_use]
    #[track_caller]
    pub fn start_or_report(options: ClusterOptions) -> Option<Self> {
        start::has_programs(options).then(|| Self::start(options))
    }

    /// The cluster that the tests of this process share, with all that there is: BlueStore, keys, a manager.
    ///
    /// It is started at the first call and ends with the process. Without its programs every test that calls this is
    /// [reported](crate::report::not_run); after a failed start every test fails, without another attempt.
    #[must_use]
    #[track_caller]
    pub fn shared_or_report() -> Option<&'static Self> {
        const OPTIONS: ClusterOptions = ClusterOptions {
            store: ObjectStore::BlueStore,
            auth: Auth::Cephx,
            manager: true,
            // As by default: longer than a busy machine delays a test between a client's death and a look at its watch.
            watch_timeout: 30,
        };
        static SHARED: LazyLock<Cluster> = LazyLock::new(|| Cluster::start(OPTIONS));
        start::has_programs(OPTIONS).then(|| &*SHARED)
    }

    /// Path of a `ceph.conf` for clients. It names the monitor, the way to authenticate, and the [keyring](Self::keyring).
    #[must_use]
    pub fn conf(&self) -> PathBuf {
        self.folder.join(CLIENT_CONF)
    }

    /// Path of a keyring with the keys of `client.admin` and of users [created](Self::create_user) here. With [`Auth::None`] there is
    /// no such file.
    #[must_use]
    pub fn keyring(&self) -> PathBuf {
        self.folder.join(CLIENT_KEYRING)
    }

    /// Where the monitor accepts clients (messenger version 2 only).
    #[must_use]
    pub fn monitor_address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The secret key of a user in base64. `user` is without `client.`: `admin`.
    #[must_use]
    #[track_caller]
    pub fn key(&self, user: &str) -> String {
        self.assert_has_keys();
        let key = self.ceph(["auth", "print-key", &format!("client.{user}")]);
        key.trim().to_owned()
    }

    /// Creates a user (without `client.`) with capabilities, such as `("mon", "profile rbd")`. Returns its secret key in base64, which is
    /// in the [keyring](Self::keyring) as well.
    #[track_caller]
    pub fn create_user(&self, user: &str, capabilities: &[(&str, &str)]) -> String {
        self.assert_has_keys();
        let name = format!("client.{user}");
        let mut args = vec!["auth", "add", &name];
        for (service, capability) in capabilities {
            args.extend([service, capability]);
        }
        self.ceph(args);
        let key = self.key(user);
        keyring::append(&self.keyring(), &name, &key, &[]);
        key
    }

    /// Creates a pool for images.
    #[track_caller]
    pub fn create_pool(&self, pool: &str) {
        self.ceph(["osd", "pool", "create", pool]);
        self.ceph(["osd", "pool", "application", "enable", pool, "rbd"]);
    }

    /// Creates an image of this size. `name` is `POOL/IMAGE`, or `IMAGE` in the pool `rbd`.
    #[track_caller]
    pub fn create_image(&self, name: &str, bytes: u64) {
        self.rbd(["create", "--size", &format!("{bytes}B"), name]);
    }

    /// Ids of the processes of the daemons that run: of the monitor first, then of the OSD, then of the manager.
    #[must_use]
    pub fn pids(&self) -> Vec<Pid> {
        let others = [&self.osd, &self.manager];
        let others = others.into_iter().flatten();
        std::iter::once(&self.monitor)
            .chain(others)
            .map(Process::pid)
            .collect()
    }

    /// Kills the OSD and waits until its process is gone. Requests wait from now on.
    #[track_caller]
    pub fn kill_osd(&mut self) {
        drop(self.osd.take().expect("the OSD runs"));
    }

    /// Starts the OSD again after it was [killed](Self::kill_osd), and waits until the monitor knows the new one.
    ///
    /// # Panics
    /// If the OSD runs, or lost its objects at its end ([`ObjectStore::MemStore`]).
    #[track_caller]
    pub fn start_osd(&mut self) {
        assert!(self.osd.is_none(), "the OSD runs");
        let store = self.options.store;
        assert_eq!(store, ObjectStore::BlueStore, "the objects are lost");
        // The monitor still has the old one as up: nothing reported its end.
        let before = self.osd_up_since();
        self.osd = Some(daemon::spawn(Daemon::Osd, &self.folder));
        self.wait_for_osd_after(before);
    }

    /// Stops the OSD without ending it (SIGSTOP): connections stay, nothing answers.
    #[track_caller]
    pub fn pause_osd(&mut self) {
        self.osd.as_ref().expect("the OSD runs").pause();
    }

    /// Lets a [paused](Self::pause_osd) OSD go on.
    #[track_caller]
    pub fn resume_osd(&mut self) {
        self.osd
            .as_ref()
            .expect("the OSD runs")
            .signal(Signal::CONT);
    }

    /// Stops the monitor without ending it (SIGSTOP): new connections are not answered. Requests on connections to the OSD go on.
    pub fn pause_monitor(&mut self) {
        self.monitor.pause();
    }

    /// Kills the monitor and starts it at the same address; waits until it answers.
    #[track_caller]
    pub fn restart_monitor(&mut self) {
        self.monitor.signal(Signal::KILL);
        // Its number is not reused before its status is taken, which dropping does.
        crate::process::wait_for_end(self.monitor.pid());
        self.monitor = daemon::spawn(Daemon::Monitor, &self.folder);
        self.wait_for_monitor();
        self.ceph(["mon", "stat"]);
    }

    fn assert_has_keys(&self) {
        assert_eq!(self.options.auth, Auth::Cephx, "there are no keys");
    }

    /// Waits until a condition holds; fails with the end of each log, at once when a daemon has ended.
    #[track_caller]
    fn wait_until(&mut self, what: impl Display, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Deadline::default();
        while !is_so(self) {
            let others = [&mut self.osd, &mut self.manager].into_iter().flatten();
            for daemon in std::iter::once(&mut self.monitor).chain(others) {
                if !daemon.is_running() {
                    let logs = self.folder.logs();
                    panic!("{what}: a daemon ended; {}{logs}", daemon.stderr());
                }
            }
            deadline.pause(format_args!("{what}{}", self.folder.logs()));
        }
    }
}
