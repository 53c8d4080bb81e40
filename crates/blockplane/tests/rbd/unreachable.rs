//! Clusters that do not answer: the start fails in time, signals are obeyed, and monitors serve others.

use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::json;
use test_support::ceph::{Cluster, ObjectStore};
use test_support::deadline::Deadline;

use crate::disk::Disk;
use crate::osd_faults::own_cluster;
use crate::process::{Folder, Process, words};
use crate::start;

/// Accepts connections, and never says anything.
struct SilentMonitor(TcpListener);

impl SilentMonitor {
    fn new() -> Self {
        SilentMonitor(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// Options of a node.
    fn node(&self) -> String {
        format!(
            "rbd,node-name=n,pool=rbd,image=i,user=vm,conf=/dev/null,auth-client-required.0=none,\
             server.0.host=127.0.0.1,server.0.port={}",
            self.port()
        )
    }

    /// Waits for a client.
    fn accept(&self) {
        self.0.set_nonblocking(true).unwrap();
        let deadline = Deadline::default();
        while self.0.accept().is_err() {
            deadline.pause("a client connects");
        }
    }
}

#[test]
fn start_fails_with_the_names_of_monitors_and_user() {
    let silent = SilentMonitor::new();
    if !test_support::report::installed("rbd") {
        return;
    }
    let folder = Folder::new();
    let output = folder.run(&format!("--blockdev {}", silent.node()));
    let monitor = format!("127.0.0.1:{}", silent.port());
    assert_eq!(output.code, Some(1), "{output:?}");
    for word in [&monitor, "client.vm", "did not accept", "within 10 s"] {
        assert!(output.stderr.contains(word), "no '{word}': {output:?}");
    }
}

#[test]
fn sigterm_ends_a_process_that_connects() {
    let silent = SilentMonitor::new();
    if !test_support::report::installed("rbd") {
        return;
    }
    let folder = Folder::new();
    let line = format!("--blockdev {}", silent.node());
    let program = Process::spawn(folder.command(words(&line)));
    silent.accept();
    program.signal(Signal::TERM);
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // It does not wait until the time for connecting is over.
    assert!(!ended.stderr.contains("did not accept"), "{ended:?}");
}

#[test]
fn adding_a_node_of_a_silent_cluster_blocks_its_own_client_only() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "beside");
    let silent = SilentMonitor::new();
    let folder = Folder::new();
    let (program, mut waits) = start(&folder, &disk.line());
    let mut client = crate::Client::connect(&folder.join("qmp"));
    let node = json!({"driver": "rbd", "node-name": "n", "pool": "rbd", "image": "i", "conf": "/dev/null",
        "auth-client-required": ["none"],
        "server": [{"host": "127.0.0.1", "port": silent.port().to_string()}]});
    waits.send("blockdev-add", &node);
    silent.accept();
    client.done("query-block", json!({}));
    client.done("blockdev-add", disk.node_json("again"));
    client.done("blockdev-del", json!({"node-name": "again"}));
    assert!(!waits.is_answered());
    // The end of the daemon does not wait for it.
    client.done("quit", json!({}));
    let ended = program.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("did not accept"), "{ended:?}");
}

#[test]
fn daemon_ends_on_sigterm_while_its_cluster_is_paused() {
    let Some(mut cluster) = own_cluster(ObjectStore::MemStore) else {
        return;
    };
    let line = Disk::create(&cluster, "paused").line();
    let folder = Folder::new();
    let (program, _) = start(&folder, &line);
    cluster.pause_osd();
    cluster.pause_monitor();
    program.signal(Signal::TERM);
    // Nothing was written, so there is nothing to wait for.
    assert_eq!(program.ended().code, Some(0));
}
