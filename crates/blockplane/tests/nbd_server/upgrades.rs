//! Live upgrades: the server and its exports go on, and clients connect again.

use std::io::Read;

use nbd::wire::{SimpleReply, command};
use test_support::upgraded_daemon::{Daemon, HELLO_MESSAGE, script_that_sends};

use crate::process::{Folder, STUCK_AFTER};
use crate::raw_client::{RawClient, request};
use crate::{MIB, SERVER, disk_line};

#[test]
fn clients_find_a_disk_by_its_name_after_upgrades_also_when_it_has_gone_over_to_another_node() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("copy", MIB);
    let copy = "--blockdev file,node-name=copy,filename=copy,cache.direct=off";
    let mut daemon = Daemon::start_in(folder, &format!("{copy} {}", disk_line("")), &[]);
    for (byte, image) in [(1, "disk"), (2, "copy"), (3, "copy")] {
        let mut client = RawClient::enter(&daemon.folder, "d");
        if byte == 2 {
            let mut monitor = daemon.client();
            monitor.execute("blockdev-mirror job-id=j device=d target=copy sync=full");
            monitor.wait_for_event("BLOCK_JOB_READY");
            monitor.execute("job-complete id=j");
            monitor.wait_for_event("BLOCK_JOB_COMPLETED");
        }
        client.write(0, 512, byte);
        daemon.upgrade();
        assert!(client.is_closed_within(STUCK_AFTER));
        let mut again = RawClient::enter(&daemon.folder, "d");
        assert_eq!(again.read(0, 512), [byte; 512]);
        let content = std::fs::read(daemon.folder.join(image)).unwrap();
        assert_eq!(content[..512], [byte; 512]);
    }
}

/// They are more than the disk takes at once: some have not reached it when the upgrade begins. An error would reach a client's guest,
/// while it connects again after the end of the connection.
#[test]
fn requests_that_an_upgrade_interrupts_are_answered_or_end_with_the_connection() {
    const CLIENTS: usize = 10;
    const REPLY: usize = SimpleReply::BYTES + 512;
    let disk = "--blockdev null-co,node-name=d,size=1M,read-zeroes=on,latency-ns=2000000000";
    let line = format!("{disk} {SERVER} --export nbd,id=e,node-name=d");
    let mut daemon = Daemon::start_in(Folder::new(), &line, &[]);
    let mut clients: Vec<RawClient> = (0..CLIENTS)
        .map(|_| RawClient::enter(&daemon.folder, "d"))
        .collect();
    for client in &mut clients {
        client.send(&request(command::READ, 0, 1, (0, 512)).repeat(256));
    }
    daemon.upgrade();
    let mut answered = 0;
    for client in &mut clients {
        let mut received = Vec::new();
        client.stream.read_to_end(&mut received).unwrap();
        for reply in received.chunks(REPLY) {
            assert_eq!(SimpleReply::decode_first(reply).unwrap().error, 0);
            answered += 1;
        }
    }
    assert!(answered > 0 && answered < CLIENTS * 256, "{answered}");
    daemon.stop();
}

/// No client is accepted from the first message of the new process on.
#[test]
fn clients_are_accepted_after_an_upgrade_that_has_failed() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let mut daemon = Daemon::start_in(folder, &disk_line(""), &[]);
    daemon.replace_program(&script_that_sends(&[HELLO_MESSAGE]));
    let said = daemon.fails_to_upgrade();
    assert!(said.contains("before it took over"), "{said}");
    RawClient::enter(&daemon.folder, "d").write(0, 512, 1);
    daemon.stop();
}
