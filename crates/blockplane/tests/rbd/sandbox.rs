//! Images that a monitor adds to a daemon in its sandbox, which was started without one.

use std::fs;

use serde_json::json;
use test_support::ceph::Cluster;

use crate::disk::{Disk, SOCKET};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::{Folder, Process, words};
use crate::start;
use crate::upgraded_daemon::Daemon;

#[test]
fn image_added_by_a_monitor_needs_the_sandbox_to_allow_it() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "not-allowed");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    let refused = client.fails("blockdev-add", disk.node_json("d"));
    assert!(refused.contains("--sandbox on,rbd=allow"), "{refused}");
    program.stop();
    let (program, mut client) = start(&folder, "--sandbox off");
    client.done("blockdev-add", disk.node_json("d"));
    program.stop();
}

/// A keyring may be in /etc, or beside the configuration.
#[test]
fn keyring_that_the_sandbox_hides_is_named() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "hidden-keyring");
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let keyring = elsewhere.join("keyring");
    fs::copy(cluster.keyring(), &keyring).unwrap();
    let (monitor, path) = (cluster.monitor_address(), keyring.display());
    let conf = format!("[global]\nmon_host = v2:{monitor}\nkeyring = {path}\n");
    fs::write(folder.join("ceph.conf"), conf).unwrap();
    let line = format!(
        "serve rbd:rbd/{}:conf=ceph.conf --socket {SOCKET}",
        disk.name
    );
    let output = folder.run(&line);
    output.assert_fails_naming(&["client.admin", &path.to_string(), "the sandbox permits"]);
    let mut program = Process::spawn(folder.command(words(&format!("{line} --sandbox off"))));
    drop(program.connection(&folder.join(SOCKET)));
    program.stop();
}

/// The configuration of the cluster is where no sandbox expects it, and the new process of an upgrade is in the same sandbox.
#[test]
fn image_added_by_a_monitor_works_in_the_sandbox_that_allows_it() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "allowed");
    let mut daemon = Daemon::start_in(Folder::new(), "--sandbox on,rbd=allow", &[]);
    let mut client = daemon.client();
    client.done("blockdev-add", disk.node_json("d"));
    client.done(
        "block-export-add",
        json!({"type": "vhost-user-blk", "id": "e", "node-name": "d", "writable": true,
            "addr": {"type": "unix", "path": SOCKET}}),
    );
    drop(client);
    for byte in 1..3 {
        let mut guest = Guest::connect(&daemon.folder.join(SOCKET), 1);
        guest.request(0, OUT, 0, byte);
        guest.request(0, IN, 0, 0);
        assert_eq!(guest.data(0, 0), [byte; BLOCK]);
        drop(guest);
        daemon.upgrade();
    }
    daemon.stop();
}
