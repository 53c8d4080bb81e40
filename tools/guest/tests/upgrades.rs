//! A server that is upgraded in place under a real guest, again and again: the guest notices nothing, not even that it has
//! to connect anew.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::thread;
use std::time::Duration;

use guest::{Boot, Scenario, Server, ServerOptions};

const UPGRADES: u64 = 5;
/// Long enough for the guest to be at work again.
const AT_WORK: Duration = Duration::from_millis(500);

/// Queues, and so processors.
const QUEUES: u16 = 2;

#[test]
fn upgrade_goes_unnoticed_by_the_guest() {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    options.num_queues = QUEUES;
    options.monitor = true;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Crashes)
        .run_asking(|question| {
            assert_eq!(question, "crashes");
            for upgrade in 0..UPGRADES {
                // Not always at the same point of what the guest does.
                thread::sleep(AT_WORK + Duration::from_millis(upgrade * 37));
                server.upgrade().unwrap_or_else(|error| panic!("{error}"));
            }
            thread::sleep(AT_WORK);
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}
