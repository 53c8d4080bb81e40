//! Signals to the guest: their number, and that none is lost.

use std::sync::Arc;

use block::Node;
use iothread::event_loop::PollSettings;
use iothread::{IothreadHandle, IothreadSettings};
use rustix::event::{EventfdFlags, eventfd};

use crate::guest::{CARRIERS, Guest, disk_by, null_disk};

fn iothread(poll_max_ns: u64) -> IothreadHandle {
    IothreadHandle::spawn(IothreadSettings {
        polling: PollSettings {
            max_ns: poll_max_ns,
            ..PollSettings::default()
        },
        ..IothreadSettings::with_id("test")
    })
    .unwrap()
}

/// A guest that sleeps whenever it has nothing to do, with so many requests in flight.
fn blocking_guest(
    disk: &Arc<Node>,
    event_idx: bool,
    poll_max_ns: u64,
    depth: usize,
    requests: u64,
) {
    let iothread = iothread(poll_max_ns);
    let mut guest = Guest::new(128, event_idx);
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

#[test]
fn a_full_call_descriptor_does_not_block_the_iothread() {
    let iothread = iothread(0);
    let mut guest = Guest::new(128, false);
    let mut setup = guest.setup(&null_disk(0), 0);
    // One more would be too much.
    let full = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    setup.queue.descriptors.call = Some(full);
    let vring = iothread.start_vring(setup).unwrap();
    let mut other = Guest::new(128, false);
    let _other_vring = iothread.start_vring(other.setup(&null_disk(0), 0)).unwrap();
    for tag in 0..100 {
        guest.read(tag, 0);
        guest.submit();
        other.read(tag, 0);
        other.submit();
        assert_eq!(other.wait_all().len(), 1);
        assert_eq!(guest.poll_some().len(), 1);
    }
    assert_eq!(vring.stop(), Some(100));
}

#[test]
fn completions_of_a_slow_disk_wake_the_loop() {
    let iothread = iothread(0);
    let mut guest = Guest::new(128, true);
    let mut vrings = Vec::new();
    vrings.push(
        iothread
            .start_vring(guest.setup(&null_disk(3_000_000), 0))
            .unwrap(),
    );
    let mut slower = Guest::new(128, true);
    vrings.push(
        iothread
            .start_vring(slower.setup(&null_disk(9_000_000), 0))
            .unwrap(),
    );
    for tag in 0..20 {
        slower.read(tag, 0);
        slower.submit();
        guest.read(tag, 0);
        guest.submit();
        assert_eq!(guest.wait_all().len(), 1);
        assert_eq!(slower.wait_all().len(), 1);
    }
}
