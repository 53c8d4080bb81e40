//! Images that are removed, renamed or cut while they are served, and clients that the cluster refuses: errors, and a daemon that
//! stays alive.

use serde_json::json;
use test_support::ceph::Cluster;
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::disk::{Disk, OBJECT, SOCKET};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::Folder;
use crate::{IOERR, MIB, start};

/// The status of a request.
fn status_of(guest: &mut Guest, kind: u32, block: u64, byte: u8) -> u8 {
    guest.ask(0, 0, kind, block, byte);
    guest.watch(0, 0);
    guest.status(0, 0)
}

/// Puts the client that has the lock on the cluster's blocklist.
fn blocklist_holder(disk: &Disk) {
    let address = disk.lock_holder().expect("a holder");
    disk.cluster.ceph(["osd", "blocklist", "add", &address]);
}

/// Opens the node anew, with the same options.
fn reopen(client: &mut Client, disk: &Disk) {
    let options = json!({"options": [disk.node_json("d")]});
    client.done("blockdev-reopen", options);
}

#[test]
fn no_write_of_a_blocklisted_client_gets_through_and_reopening_connects_again() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "blocked");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    for round in 2..4 {
        blocklist_holder(&disk);
        // The OSD learns of it with its next map.
        eventually("a write fails", || {
            status_of(&mut guest, OUT, 1, round) == IOERR
        });
        for kind in [OUT, IN] {
            assert_eq!(status_of(&mut guest, kind, 0, 9), IOERR);
        }
        assert_eq!(disk.content()[..BLOCK], [round - 1; BLOCK]);
        reopen(&mut client, &disk);
        assert_eq!(status_of(&mut guest, OUT, 0, round), 0);
        guest.request(0, IN, 0, 0);
        assert_eq!(guest.data(0, 0), [round; BLOCK]);
    }
    program.stop();
    assert_eq!(disk.content()[..BLOCK], [3; BLOCK]);
}

#[test]
fn parked_requests_of_a_blocklisted_client_are_carried_out_after_reopening() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "parked");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &disk.line_with("", ",werror=stop,rerror=stop"));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    blocklist_holder(&disk);
    // The OSD learns of it with its next map.
    let deadline = Deadline::default();
    let mut parked = false;
    while !parked {
        guest.ask(0, 0, OUT, 1, 2);
        while !parked && !guest.is_answered(0, 0) {
            deadline.pause("an answer, or an error");
            let exports = client.done("query-block-exports", json!({}));
            parked = exports[0]["io-status"] == "failed";
        }
    }
    reopen(&mut client, &disk);
    client.done("block-export-resume", json!({"id": "e"}));
    guest.wait(0, 0);
    guest.request(0, IN, 1, 0);
    assert_eq!(guest.data(0, 0), [2; BLOCK]);
    program.stop();
}

#[test]
fn other_images_of_a_blocklisted_client_come_back_one_by_one() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let [disk, other] = ["blocked-first", "blocked-second"].map(|name| Disk::create(cluster, name));
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &disk.line());
    client.done("blockdev-add", other.node_json("n"));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    blocklist_holder(&disk);
    eventually("a write fails", || {
        status_of(&mut guest, OUT, 0, 2) == IOERR
    });
    // Its images share a client, which others keep in use.
    reopen(&mut client, &disk);
    guest.request(0, OUT, 0, 3);
    client.done("blockdev-del", json!({"node-name": "n"}));
    client.done("blockdev-add", other.node_json("n"));
    program.stop();
}

#[test]
fn image_that_is_renamed_stays_in_use() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "old-name");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    cluster.rbd(["rename", "old-name", "new-name"]);
    guest.request(0, OUT, 1, 2);
    program.stop();
    let content = Disk::existing(cluster, "new-name").content();
    assert_eq!(content[BLOCK..2 * BLOCK], [2; BLOCK]);
}

#[test]
fn image_in_use_is_not_removed_and_one_that_is_gone_is_named() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "removed");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    let error = disk.rbd_fails(["rm", "--no-progress", "removed"]);
    assert!(error.contains("watchers"), "{error}");
    guest.request(0, IN, 0, 0);
    assert_eq!(guest.data(0, 0), [1; BLOCK]);
    client.done("query-block", json!({}));
    program.stop();
    disk.is_closed();
    cluster.rbd(["rm", "--no-progress", "removed"]);
    let output = folder.run(&disk.line());
    output.assert_fails_naming(&["rbd/removed"]);
}

#[test]
fn writes_beyond_the_end_of_a_cut_image_fail() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "cut");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    let last = MIB / BLOCK as u64 - 1;
    guest.request(0, OUT, last, 1);
    let size = format!("{OBJECT}B");
    cluster.rbd([
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        &size,
        "cut",
    ]);
    eventually("the end has moved", || guest.capacity() == OBJECT);
    for kind in [OUT, IN] {
        assert_eq!(status_of(&mut guest, kind, last, 2), IOERR);
    }
    guest.request(0, OUT, 0, 3);
    program.stop();
    assert_eq!(disk.content().len() as u64, OBJECT);
}
