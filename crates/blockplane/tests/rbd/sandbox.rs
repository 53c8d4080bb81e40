//! Images that a monitor adds to a daemon in its sandbox, which was started without one.

use serde_json::json;
use test_support::ceph::Cluster;

use crate::disk::{Disk, SOCKET};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::Folder;
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
