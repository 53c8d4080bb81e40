//! Live upgrades: the server and its exports go on, and clients connect again.

use nbd::wire::command;

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
