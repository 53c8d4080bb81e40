//! Live upgrades: the server and its exports go on, and clients connect again.

use nbd::wire::command;

use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, STUCK_AFTER};
use crate::raw_client::{RawClient, request};
use crate::upgraded_daemon::Daemon;
use crate::{MIB, disk_line};

#[test]
fn the_server_and_its_exports_are_there_after_an_upgrade() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let mut daemon = Daemon::start_in(folder, &disk_line(",description=a-disk"), &[]);
    for byte in 1..3 {
        let mut client = RawClient::enter(&daemon.folder, "d");
        client.send(&[request(command::WRITE, 0, 1, (0, 512)), vec![byte; 512]].concat());
        assert_eq!(client.reply(0).1, 0);
        daemon.upgrade();
        assert!(client.is_closed_within(STUCK_AFTER));
        let mut again = RawClient::enter(&daemon.folder, "d");
        again.send(&request(command::READ, 0, 2, (0, 512)));
        assert_eq!(again.reply(512), (2, 0, vec![byte; 512]));
    }
}

#[test]
fn clients_find_a_disk_by_its_name_after_it_has_gone_over_to_another_node() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("copy", MIB);
    let line = format!(
        "--blockdev file,node-name=copy,filename=copy,cache.direct=off {}",
        disk_line("")
    );
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let mut client = RawClient::enter(&daemon.folder, "d");
    let mut monitor = Client::connect(&daemon.folder.join("qmp"));
    monitor.done(
        "blockdev-mirror",
        json!({"job-id": "j", "device": "d", "target": "copy", "sync": "full"}),
    );
    monitor.wait_for_event("BLOCK_JOB_READY");
    monitor.done("job-complete", json!({"id": "j"}));
    monitor.wait_for_event("BLOCK_JOB_COMPLETED");
    client.send(&[request(command::WRITE, 0, 1, (0, 512)), vec![7; 512]].concat());
    assert_eq!(client.reply(0).1, 0);
    drop(monitor);
    daemon.upgrade();
    let mut again = RawClient::enter(&daemon.folder, "d");
    again.send(&request(command::READ, 0, 2, (0, 512)));
    assert_eq!(again.reply(512), (2, 0, vec![7; 512]));
    assert_eq!(
        std::fs::read(daemon.folder.join("copy")).unwrap()[..512],
        [7; 512]
    );
}
