//! A server that is killed, or upgraded in place, under a real guest, again and again.

use std::thread;
use std::time::Duration;

use guest::{Boot, Server};

use crate::{AT_WORK, disk, kill_again_and_again, serve};

const SIZE_BYTES: u64 = 64 << 20;
/// Queues, and so processors.
const QUEUES: u16 = 2;

fn assert_kills_go_unnoticed(packed: bool, kills: u64) {
    let (_folder, mut options) = disk(SIZE_BYTES);
    options.num_queues = QUEUES;
    options.packed = packed;
    let server = serve(&options);
    let report = Boot::new(&server, "verified_rounds")
        .reconnecting()
        .run_asking(|_, _| kill_again_and_again(&server, kills))
        .unwrap();
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    server.stop().unwrap();
}

#[test]
#[ignore = "full run only"]
fn twenty_kills_go_unnoticed_by_the_guest() {
    assert_kills_go_unnoticed(false, 20);
}

#[test]
#[ignore = "full run only"]
fn twenty_kills_go_unnoticed_by_a_guest_with_packed_queues() {
    assert_kills_go_unnoticed(true, 20);
}

/// Upgrades the server so often under a guest at work.
pub(crate) fn upgrade_again_and_again(server: &Server, upgrades: u64) {
    for upgrade in 0..upgrades {
        // Not always at the same point of what the guest does.
        thread::sleep(Duration::from_millis(500 + upgrade * 37));
        server.upgrade().unwrap();
    }
    thread::sleep(AT_WORK);
}

/// QEMU does not connect again: the upgraded server has the connection of the one before.
#[test]
#[ignore = "full run only"]
fn upgrades_go_unnoticed_by_the_guest() {
    let (_folder, mut options) = disk(SIZE_BYTES);
    options.num_queues = QUEUES;
    options.monitor = true;
    let server = serve(&options);
    let report = Boot::new(&server, "verified_rounds")
        .run_asking(|_, _| upgrade_again_and_again(&server, 5))
        .unwrap();
    assert_eq!(report.idle_writer(2 * QUEUES), None);
    server.stop().unwrap();
}
