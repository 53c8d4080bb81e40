//! Signals to the guest: their number, and that none is lost.

use std::sync::Arc;

use block::Node;
use iothread::event_loop::PollSettings;
use iothread::{IothreadHandle, IothreadSettings};

use crate::queue_driver::{CARRIERS, QueueDriver, disk_by, null_disk};

/// A guest that sleeps whenever it has nothing to do, with so many requests in flight.
fn blocking_guest(
    disk: &Arc<Node>,
    event_idx: bool,
    poll_max_ns: u64,
    depth: usize,
    requests: u64,
) {
    let polling = PollSettings {
        max_ns: poll_max_ns,
        ..PollSettings::default()
    };
    let settings = IothreadSettings {
        polling,
        ..IothreadSettings::with_id("test")
    };
    let iothread = IothreadHandle::spawn(settings).unwrap();
    let mut guest = QueueDriver::new(128, event_idx);
    let vring = iothread.start_vring(guest.setup(disk, 0)).unwrap();
    let (mut asked, mut answered) = (0, 0);
    while answered < requests {
        while asked < requests && guest.in_flight() < depth {
            guest.read(asked, asked % 1000);
            asked += 1;
        }
        guest.submit();
        answered += guest.wait_some().len() as u64;
    }
    assert!(guest.signals <= requests, "{} signals", guest.signals);
    let low = u16::try_from(requests % 65_536).unwrap();
    assert_eq!(vring.stop(), Some(u32::from(low)));
}

#[test]
fn a_sleeping_guest_is_always_woken() {
    for event_idx in [false, true] {
        for poll_max_ns in [0, 50_000] {
            blocking_guest(&null_disk(0), event_idx, poll_max_ns, 1, 10_000);
            blocking_guest(&null_disk(0), event_idx, poll_max_ns, 16, 10_000);
            // By the clock, which no descriptor announces.
            blocking_guest(&null_disk(3_000_000), event_idx, poll_max_ns, 2, 20);
        }
    }
}

#[test]
fn a_sleeping_guest_is_always_woken_by_a_slow_disk() {
    for (disk, _folder) in CARRIERS.map(disk_by) {
        for event_idx in [false, true] {
            blocking_guest(&disk, event_idx, 32_768, 1, 1000);
            blocking_guest(&disk, event_idx, 0, 16, 3000);
        }
    }
}
