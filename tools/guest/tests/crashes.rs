//! A server that is killed under a real guest, again and again.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::thread;
use std::time::Duration;

use guest::{Boot, Scenario, Server, ServerOptions};

const CRASHES: u32 = 20;
/// Long enough for QEMU to have connected again (it tries each second) and for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(1600);

fn survives(num_queues: u16, packed: bool, crashes: u32) {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    options.num_queues = num_queues;
    options.packed = packed;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Crashes)
        .reconnecting()
        .run_asking(|question| {
            assert_eq!(question, "crashes");
            for crash in 0..crashes {
                // Not always at the same point of what the guest does.
                thread::sleep(AT_WORK + Duration::from_millis(u64::from(crash * 37 % 100)));
                server.crash().unwrap_or_else(|error| panic!("{error}"));
            }
            thread::sleep(AT_WORK);
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.idle_writer(2 * num_queues), None);
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn killing_the_server_goes_unnoticed_by_the_guest() {
    survives(2, false, CRASHES);
}

#[test]
fn killing_the_server_goes_unnoticed_by_a_guest_with_packed_queues() {
    survives(2, true, CRASHES / 4);
}
