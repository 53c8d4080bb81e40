//! A queue that its front-end has disabled stays so across upgrades, and goes on when it is enabled.

use test_support::upgraded_daemon::Daemon;

use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver, SLOTS};

/// Both queues are on one iothread, which handles messages about the second before it answers a later request of the first.
fn start() -> Daemon {
    let folder = Folder::new();
    folder.image("disk.img", 16 << 20);
    let line = "--object iothread,id=io0 --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,num-queues=2,iothread=io0";
    Daemon::start_in(folder, line, &[])
}

/// The other queue works, and this one has taken nothing.
fn stays_disabled(guest: &mut RequestDriver, round: u8) {
    for slot in 0..SLOTS {
        guest.request(0, OUT, slot as u64, round);
    }
    assert!(!guest.is_answered(1, 0), "it takes requests, round {round}");
}

#[test]
fn a_disabled_queue_stays_disabled_across_upgrades() {
    let mut daemon = start();
    let mut guest = RequestDriver::connect(&daemon.folder.join("s"), 2);
    guest.request(1, OUT, 100, 7);
    guest.enable(1, false);
    // When this is answered the iothread has handled the message.
    guest.request(0, OUT, 0, 1);
    guest.ask(1, 0, IN, 100, 0);
    stays_disabled(&mut guest, 1);
    daemon.upgrade();
    stays_disabled(&mut guest, 2);
    // The process that goes on is the old one, and has enabled the other queue again.
    daemon.replace_program("exit 1");
    daemon.fails_to_upgrade();
    stays_disabled(&mut guest, 3);
    daemon.restore_program();
    daemon.upgrade();
    stays_disabled(&mut guest, 4);
    guest.enable(1, true);
    guest.wait(1, 0);
    assert_eq!(guest.data(1, 0), [7; BLOCK]);
    // An enabled one stays enabled.
    daemon.upgrade();
    guest.request(1, IN, 100, 0);
    assert_eq!(guest.data(1, 0), [7; BLOCK]);
    drop(guest);
    daemon.stop();
}
