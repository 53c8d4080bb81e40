//! A thread without work does nothing.

use std::time::Duration;

use block::FaultAction;
use test_support::deadline::eventually;
use test_support::threads::{status_field, threads_named};

use crate::queue_driver::{CARRIERS, QueueDriver, disk_by, fault, filter, iothread, null_disk};

/// What the kernel says about a thread of this process.
fn about(thread: &str, file: &str) -> String {
    let this = rustix::process::getpid();
    let folders = threads_named(this, thread);
    std::fs::read_to_string(folders[0].join(file)).unwrap()
}

/// How often it has gone to sleep.
fn sleeps(thread: &str) -> String {
    status_field(&about(thread, "status"), "voluntary_ctxt_switches")
}

/// How long it has run, in nanoseconds, with what else the scheduler counts.
fn scheduled(thread: &str) -> String {
    about(thread, "schedstat")
}

#[test]
fn after_the_last_request_the_thread_sleeps_and_stays_asleep() {
    let iothread = iothread("idle");
    let [(disk, _folder), (other, _other_folder)] = CARRIERS.map(disk_by);
    let mut guests = [
        QueueDriver::new(64, false),
        QueueDriver::new(64, true),
        QueueDriver::new(64, true),
        QueueDriver::new(64, true),
    ];
    let disks = [disk, other, null_disk(0), null_disk(1_000_000)];
    let _vrings: Vec<_> = guests
        .iter()
        .zip(&disks)
        .map(|(guest, disk)| iothread.start_vring(guest.setup(disk, 0)).unwrap())
        .collect();
    for round in 0..50 {
        for guest in &mut guests {
            guest.read(round, round);
            guest.submit();
        }
        for guest in &mut guests {
            guest.wait_all();
        }
    }
    // The last signal comes before the loop has come to rest.
    let rest = Duration::from_millis(300);
    eventually("it sleeps", || {
        let before = sleeps("IO idle");
        std::thread::sleep(rest / 10);
        // One that waits for a processor does not count as asleep.
        sleeps("IO idle") == before && about("IO idle", "status").contains("State:\tS")
    });
    let before = sleeps("IO idle");
    std::thread::sleep(rest);
    assert_eq!(sleeps("IO idle"), before, "it woke up for nothing");

    // It is asleep, not gone.
    guests[0].read_once(0);
    eventually("it does not poll for ever", || sleeps("IO idle") != before);
}

/// Its timer is due when nothing waits for it any more.
#[test]
fn after_a_delay_that_a_stop_has_cut_short_the_thread_sleeps() {
    let delay = Duration::from_millis(200);
    let delays = FaultAction::Delay(u64::try_from(delay.as_nanos()).unwrap());
    let (node, _) = filter(&null_disk(0), &[fault(None, delays)]);
    let iothread = iothread("cut");
    let mut guest = QueueDriver::new(64, false);
    let setup = guest.setup(&node, 0);
    let stats = setup.stats.clone();
    let vring = iothread.start_vring(setup).unwrap();
    guest.read(0, 0);
    guest.submit();
    eventually("it is taken", || stats.in_flight().get() > 0);
    assert_eq!(vring.stop(), Some(1), "one request was taken");
    std::thread::sleep(2 * delay);
    let at_rest = (0..10).any(|_| {
        let before = scheduled("IO cut");
        std::thread::sleep(delay / 4);
        scheduled("IO cut") == before
    });
    assert!(at_rest, "it runs although nothing is to be done");
}
