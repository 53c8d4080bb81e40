//! Snapshots of disks that clients read: their end, and who else may write the old data.

use nbd::wire::command;
use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::raw_client::{RawClient, request};
use crate::{MIB, SERVER, start};

/// `EIO` of the protocol.
const EIO: u32 = 5;

/// The program with a disk, a node `old` for its old data, and one of half of it.
fn start_with_old_data(folder: &Folder) -> (Process, Client) {
    folder.image("disk", MIB);
    folder.image("old", MIB);
    start(
        folder,
        &format!(
            "--blockdev file,node-name=disk,filename=disk --blockdev file,node-name=old,filename=old \
             --blockdev raw,node-name=half,file=old,size=512K {SERVER}"
        ),
    )
}

fn begin(client: &mut Client) {
    let backup = json!({"job-id": "j", "device": "disk", "target": "old", "sync": "none"});
    client.done("blockdev-backup", backup);
}

#[test]
fn failed_read_of_a_snapshot_that_has_ended_is_not_reported_as_an_error_of_a_disk() {
    let folder = Folder::new();
    let (program, mut client) = start_with_old_data(&folder);
    begin(&mut client);
    let snapshot = json!({"driver": "snapshot-access", "node-name": "moment", "file": "disk"});
    client.done("blockdev-add", snapshot);
    client.done(
        "block-export-add",
        json!({"type": "nbd", "id": "e", "node-name": "moment"}),
    );
    let mut reader = RawClient::enter(&folder, "moment");
    let read = request(command::READ, 0, 1, (0, 4096));
    reader.send(&read);
    assert_eq!(reader.reply(4096).1, 0);
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    reader.send(&read);
    assert_eq!(reader.reply(4096).1, EIO);
    let event = client.wait_for_event("BLOCK_IO_ERROR");
    assert_eq!(event["node-name"], "moment");
    assert_eq!(event["reason"], "the backup of the snapshot has ended");
    let log = program.stop().stderr;
    let expected = "a read of a snapshot has failed, since its backup has ended";
    assert!(log.contains(expected), "{log}");
    assert!(!log.contains("look for errors of the disk"), "{log}");
}

#[test]
fn clients_cannot_write_to_the_old_data_of_a_disk() {
    let folder = Folder::new();
    let (program, mut client) = start_with_old_data(&folder);
    let export = |node: &str, writable: bool| json!({"type": "nbd", "id": "e", "node-name": node, "writable": writable});
    let remove = |client: &mut Client| {
        client.done("block-export-del", json!({"id": "e"}));
        client.event("BLOCK_EXPORT_DELETED", "e");
    };
    for node in ["old", "half"] {
        client.done("block-export-add", export(node, true));
        let backup = json!({"job-id": "j", "device": "disk", "target": "old", "sync": "none"});
        let refused = client.fails("blockdev-backup", backup);
        assert!(
            refused.contains("clients of export 'e' may write there"),
            "{refused}"
        );
        remove(&mut client);
        begin(&mut client);
        let refused = client.fails("block-export-add", export(node, true));
        assert!(
            refused.contains("job 'j' keeps old data there"),
            "{refused}"
        );
        client.done("block-export-add", export(node, false));
        remove(&mut client);
        client.done("job-cancel", json!({"id": "j"}));
        client.wait_for_event("BLOCK_JOB_CANCELLED");
    }
    program.stop();
}
