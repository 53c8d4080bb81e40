//! A thread without work does nothing.

use std::time::{Duration, Instant};

use block::{FaultAction, FaultRule, FaultRules, Faults, Node};
use iothread::{IothreadHandle, IothreadSettings};
use test_support::deadline::eventually;

use crate::guest::{CARRIERS, Guest, disk_by, null_disk};

/// What the kernel says about a thread of this process.
fn about(thread: &str, file: &str) -> String {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread that ended meanwhile is not the one.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if name.trim_end() == thread {
            return std::fs::read_to_string(task.join(file)).unwrap();
        }
    }
    panic!("no thread {thread}");
}

/// How often it has gone to sleep.
fn sleeps(thread: &str) -> u64 {
    let status = about(thread, "status");
    let line = status
        .lines()
        .find(|line| line.starts_with("voluntary_ctxt_switches"))
        .unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// How long it has run, in nanoseconds.
fn cpu_ns(thread: &str) -> u64 {
    let schedstat = about(thread, "schedstat");
    schedstat
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn after_the_last_request_the_thread_sleeps_and_stays_asleep() {
    let iothread = IothreadHandle::spawn(IothreadSettings::with_id("idle")).unwrap();
    let [(disk, _folder), (other, _other_folder)] = CARRIERS.map(disk_by);
    let mut guests = [
        Guest::new(64, false),
        Guest::new(64, true),
        Guest::new(64, true),
        Guest::new(64, true),
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
    guests[0].read(0, 0);
    guests[0].submit();
    guests[0].wait_all();
    eventually("it does not poll for ever", || sleeps("IO idle") > before);
}

/// Its timer is due when nothing waits for it any more.
#[test]
fn after_a_delay_that_a_stop_has_cut_short_the_thread_sleeps() {
    let delay = Duration::from_millis(200);
    let rule = FaultRule {
        begins: None,
        op: None,
        bytes: None,
        times: None,
        one_in: 1,
        action: FaultAction::Delay(u64::try_from(delay.as_nanos()).unwrap()),
    };
    let faults = Faults::new(FaultRules {
        rules: vec![rule],
        seed: 1,
    });
    let node = Node::new_filter("filter", &null_disk(0), faults, false, true);
    let iothread = IothreadHandle::spawn(IothreadSettings::with_id("cut")).unwrap();
    let mut guest = Guest::new(64, false);
    let setup = guest.setup(&node, 0);
    let stats = setup.stats.clone();
    let vring = iothread.start_vring(setup).unwrap();
    guest.read(0, 0);
    guest.submit();
    let begin = Instant::now();
    while stats.in_flight().get() == 0 {
        assert!(begin.elapsed().as_secs() < 60, "the request is not taken");
        std::thread::yield_now();
    }
    assert_eq!(vring.stop(), Some(1), "one request was taken");
    std::thread::sleep(2 * delay);
    let at_rest = (0..10).any(|_| {
        let before = cpu_ns("IO cut");
        std::thread::sleep(delay / 4);
        cpu_ns("IO cut") == before
    });
    assert!(at_rest, "it runs although nothing is to be done");
}
