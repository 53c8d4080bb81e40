//! Images that are removed, renamed or cut while they are served, and clients that the cluster refuses: errors, and a daemon that
//! stays alive.

use serde_json::json;
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::disk::{Disk, OBJECT, SOCKET, read};
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};
use crate::{IOERR, MIB, new_disk, serve};

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
    let Some((disk, folder, program, mut client)) = serve("blocked", "", "") else {
        return;
    };
    let Some(other) = new_disk("blocked-second") else {
        return;
    };
    client.done("blockdev-add", other.node_json("n"));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    for round in 2..4 {
        blocklist_holder(&disk);
        // The OSD learns of it with its next map.
        eventually("a write fails", || {
            guest.status_of(0, OUT, 1, round) == IOERR
        });
        for kind in [OUT, IN] {
            assert_eq!(guest.status_of(0, kind, 0, 9), IOERR);
        }
        assert_eq!(disk.content()[..BLOCK], [round - 1; BLOCK]);
        // Its images share a client, which the other one keeps in use.
        reopen(&mut client, &disk);
        guest.request(0, OUT, 0, round);
        assert_eq!(read(&mut guest, 0), [round; BLOCK]);
    }
    client.execute("blockdev-del node-name=n");
    client.done("blockdev-add", other.node_json("n"));
    program.stop();
    assert_eq!(disk.content()[..BLOCK], [3; BLOCK]);
}

#[test]
fn parked_requests_of_a_blocklisted_client_are_carried_out_after_reopening() {
    let policy = ",werror=stop,rerror=stop";
    let Some((disk, folder, program, mut client)) = serve("parked", "", policy) else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    blocklist_holder(&disk);
    // The OSD learns of it with its next map.
    let deadline = Deadline::default();
    let mut parked = false;
    while !parked {
        guest.ask(0, 0, OUT, 1, 2);
        while !parked && !guest.is_answered(0, 0) {
            deadline.pause("an answer, or an error");
            let exports = client.execute("query-block-exports");
            parked = exports[0]["io-status"] == "failed";
        }
    }
    reopen(&mut client, &disk);
    client.execute("block-export-resume id=e");
    guest.wait(0, 0);
    assert_eq!(read(&mut guest, 1), [2; BLOCK]);
    program.stop();
}

#[test]
fn image_in_use_is_renamed_cut_and_not_removed_and_one_that_is_gone_is_named() {
    let Some((disk, folder, program, _)) = serve("old-name", "", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    disk.cluster.rbd(["rename", "old-name", "new-name"]);
    guest.request(0, OUT, 1, 2);
    let renamed = Disk::existing(disk.cluster, "new-name");
    let error = renamed.rbd_fails(["rm", "--no-progress", "new-name"]);
    assert!(error.contains("watchers"), "{error}");
    assert_eq!(read(&mut guest, 0), [1; BLOCK]);
    let last = MIB / BLOCK as u64 - 1;
    guest.request(0, OUT, last, 1);
    renamed.resize(OBJECT);
    eventually("the end has moved", || guest.capacity() == OBJECT);
    for kind in [OUT, IN] {
        assert_eq!(guest.status_of(0, kind, last, 2), IOERR);
    }
    guest.request(0, OUT, 2, 3);
    program.stop();
    let content = renamed.content();
    assert_eq!(content.len() as u64, OBJECT);
    for (byte, found) in (1..=3).zip(content.chunks(BLOCK)) {
        assert_eq!(found, [byte; BLOCK]);
    }
    renamed.is_closed();
    disk.cluster.rbd(["rm", "--no-progress", "new-name"]);
    let output = folder.run(&renamed.line());
    output.assert_fails_naming(&["rbd/new-name"]);
}
