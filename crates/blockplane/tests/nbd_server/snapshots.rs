//! Snapshots of disks that clients read: their end, and who else may write the old data.

use nbd::wire::command;
use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::raw_client::RawClient;
use crate::{MIB, SERVER, cancel_job, keep_old_data, remove_export, start};

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

#[test]
fn failed_read_of_a_snapshot_that_has_ended_is_not_reported_as_an_error_of_a_disk() {
    let folder = Folder::new();
    let (program, mut client) = start_with_old_data(&folder);
    client.done("blockdev-backup", keep_old_data("disk", "old"));
    client.execute("blockdev-add driver=snapshot-access node-name=moment file=disk");
    client.execute("block-export-add type=nbd id=e node-name=moment");
    let mut reader = RawClient::enter(&folder, "moment");
    reader.read(0, 4096);
    cancel_job(&mut client);
    assert_eq!(reader.result_of(command::READ, 0, (0, 4096)), EIO);
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
    let backup = keep_old_data("disk", "old");
    for node in ["old", "half"] {
        client.done("block-export-add", export(node, true));
        let refused = client.fails("blockdev-backup", backup.clone());
        let expected = "clients of export 'e' may write there";
        assert!(refused.contains(expected), "{refused}");
        remove_export(&mut client, "e");
        client.done("blockdev-backup", backup.clone());
        let refused = client.fails("block-export-add", export(node, true));
        let expected = "job 'j' keeps old data there";
        assert!(refused.contains(expected), "{refused}");
        client.done("block-export-add", export(node, false));
        remove_export(&mut client, "e");
        cancel_job(&mut client);
    }
    program.stop();
}
