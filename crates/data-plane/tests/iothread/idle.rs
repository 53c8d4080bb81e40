//! A thread without work does nothing.

use std::time::Duration;

use data_plane::{DataThread, DataThreadSettings};

use crate::guest::{CARRIERS, Guest, disk_by, null_disk};

/// How often a thread of this process has gone to sleep.
fn sleeps(thread: &str) -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A thread that ended meanwhile is not the one.
        let Ok(name) = std::fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if name.trim_end() == thread {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("voluntary_ctxt_switches"))
                .unwrap();
            return line.split_whitespace().last().unwrap().parse().unwrap();
        }
    }
    panic!("no thread {thread}");
}

#[test]
fn after_the_last_request_the_thread_sleeps_and_stays_asleep() {
    let iothread = DataThread::spawn(DataThreadSettings::named("idle")).unwrap();
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
    let settled = (0..100).any(|_| {
        let before = sleeps("IO idle");
        std::thread::sleep(rest / 10);
        sleeps("IO idle") == before
    });
    assert!(settled, "it wakes up again and again");
    let before = sleeps("IO idle");
    std::thread::sleep(rest);
    assert_eq!(sleeps("IO idle"), before, "it woke up for nothing");

    // It is asleep, not gone.
    guests[0].read(0, 0);
    guests[0].submit();
    guests[0].wait_all();
    let asleep_again = (0..100).any(|_| {
        std::thread::sleep(rest / 10);
        sleeps("IO idle") > before
    });
    assert!(asleep_again, "it polls for ever");
}
