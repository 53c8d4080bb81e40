//! The start of a cluster: stores of the monitor and the OSD, their processes, a pool.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::commands::run;
use super::daemon::{self, Daemon, daemon_command};
use super::folder::ClusterFolder;
use super::keyring::{self, ADMIN, CAPABILITIES, CLIENT_KEYRING, DAEMON_KEYRING};
use super::{Auth, Cluster, ClusterOptions, conf};
use crate::report::{installed, is_on_path};
use crate::reserved_port::ReservedPort;

/// Whether the programs of such a cluster are on this machine; [reports](crate::report::not_run) that the calling test does not run if
/// one is missing.
#[track_caller]
pub(super) fn has_programs(options: ClusterOptions) -> bool {
    Cluster::missing_program(options).is_none_or(installed)
}

impl Cluster {
    /// A program of such a cluster that is not on this machine; `None` if all are.
    #[must_use]
    pub fn missing_program(options: ClusterOptions) -> Option<&'static str> {
        let clients = ["ceph", "rbd", "ceph-authtool", "monmaptool", "setpriv"];
        let daemons = [Daemon::Monitor, Daemon::Osd].map(Daemon::program);
        let manager = options.manager.then_some(Daemon::Manager.program());
        let mut programs = daemons.into_iter().chain(manager).chain(clients);
        programs.find(|program| !is_on_path(program))
    }

    /// Starts a cluster. [`Self::start_or_report`] does so where the programs may be missing.
    ///
    /// # Panics
    /// If a daemon does not start in time; the message has the end of each log.
    #[must_use]
    #[track_caller]
    pub fn start(options: ClusterOptions) -> Self {
        let folder = ClusterFolder::new();
        let port = ReservedPort::reserve();
        let address = port.address();
        let id = uuid();
        conf::write(&folder, options, address, &id);
        if options.auth == Auth::Cephx {
            create_keys(&folder);
        }
        create_monitor_store(&folder, options.auth, address, &id);
        let monitor = daemon::spawn(Daemon::Monitor, &folder);
        let mut cluster = Cluster {
            options,
            monitor,
            osd: None,
            manager: None,
            port,
            folder,
        };
        cluster.wait_for_monitor();
        cluster.create_osd();
        if options.manager {
            fs::create_dir(cluster.folder.join("modules")).unwrap();
            cluster.manager = Some(daemon::spawn(Daemon::Manager, &cluster.folder));
        }
        cluster.create_pool("rbd");
        cluster.wait_for_osd_after(0);
        if options.manager {
            cluster.wait_until("an active manager", |cluster| {
                cluster.json(&["mgr", "stat"])["available"] == true
            });
        }
        cluster
    }

    /// Waits until the monitor accepts clients.
    #[track_caller]
    pub(super) fn wait_for_monitor(&mut self) {
        self.wait_until("the monitor accepts clients", |cluster| {
            TcpStream::connect(cluster.port.address()).is_ok()
        });
    }

    /// Makes the OSD's store and starts it.
    #[track_caller]
    fn create_osd(&mut self) {
        fs::create_dir(self.folder.join("osd")).unwrap();
        let id = uuid();
        self.ceph(["osd", "new", &id, "0"]);
        let mut create = daemon_command(Daemon::Osd, &self.folder);
        create.args(["--mkfs", "--osd-uuid", &id]);
        run(create, &self.folder);
        self.osd = Some(daemon::spawn(Daemon::Osd, &self.folder));
    }

    /// The epoch of the cluster's map in which the OSD came up; 0 if it never did.
    #[track_caller]
    pub(super) fn osd_up_since(&self) -> u64 {
        let map = self.json(&["osd", "dump"]);
        let osd = &map["osds"][0];
        match osd["up"] == 1 {
            true => osd["up_from"].as_u64().unwrap(),
            false => 0,
        }
    }

    /// Waits until the OSD is up in an epoch after this one.
    #[track_caller]
    pub(super) fn wait_for_osd_after(&mut self, epoch: u64) {
        self.wait_until("the monitor knows the OSD", |cluster| {
            cluster.osd_up_since() > epoch
        });
    }

    /// The answer of the monitor to a query.
    #[track_caller]
    fn json(&self, query: &[&str]) -> Value {
        let answer = self.ceph(query.iter().chain(&["--format", "json"]));
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{query:?}: {answer}: {error}"))
    }
}

fn create_keys(folder: &ClusterFolder) {
    for (entity, capabilities) in CAPABILITIES {
        let mut generate = Command::new("ceph-authtool");
        generate.arg("--gen-print-key");
        let key = run(generate, folder);
        let daemons = folder.join(DAEMON_KEYRING);
        keyring::append(&daemons, entity, key.trim(), capabilities);
        if entity == ADMIN {
            keyring::append(&folder.join(CLIENT_KEYRING), entity, key.trim(), &[]);
        }
    }
}

fn create_monitor_store(folder: &ClusterFolder, auth: Auth, address: SocketAddr, id: &str) {
    let map = folder.join("monitors");
    let mut create = Command::new("monmaptool");
    create.args(["--create", "--fsid", id, "--addv", "a"]);
    create.arg(format!("[v2:{address}]"));
    // Otherwise the monitor first raises it from release to release.
    create.args(["--set-min-mon-release", "pacific"]).arg(&map);
    run(create, folder);
    let mut create = daemon_command(Daemon::Monitor, folder);
    create.arg("--mkfs").arg("--monmap").arg(&map);
    if auth == Auth::Cephx {
        create.arg("--keyring").arg(folder.join(DAEMON_KEYRING));
    }
    run(create, folder);
}

fn uuid() -> String {
    let uuid = fs::read_to_string(Path::new("/proc/sys/kernel/random/uuid"));
    uuid.unwrap().trim().to_owned()
}
