//! Shutdown by signals: the first completes requests, the second ends the program at once.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use test_support::deadline::{Deadline, eventually};
use test_support::events::event;
use test_support::vhost_user::queue::Queue;
use test_support::vhost_user::ring::Ring;
use test_support::vhost_user::wire::*;
use virtqueue::RingFeatures;
use virtqueue::testing::TestMemory;

use crate::front_end;
use crate::process::{Folder, Process, text};
use crate::request_driver::{GET_ID, IN, RequestDriver};

/// The time in which a repeated signal is the same.
const REPEAT_INTERVAL: Duration = Duration::from_millis(100);

/// A read in flight: the request behind it is answered already. It hangs until its queue stops, and takes this long then.
/// The program has another export, `other`.
fn read_in_flight(folder: &Folder, latency_ns: u64) -> (Process, RequestDriver) {
    let server = folder.start(
        &format!(
            "--blockdev null-co,node-name=n,size=1M,latency-ns={latency_ns} \
             --blockdev blkdebug,node-name=d,image=n,inject-error.0.iotype=read,inject-error.0.action=hang \
             --export vhost-user-blk,id=f,node-name=n,addr.type=unix,addr.path=other \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s"
        ),
        "s",
    );
    let mut guest = front_end(folder, "s", 1);
    guest.add(0, 0, IN, 0, 0);
    guest.ask(0, 1, GET_ID, 0, 0);
    guest.wait(0, 1);
    assert!(!guest.is_answered(0, 0));
    (server, guest)
}

/// Its requests are complete when a front-end is disconnected: one that comes back goes on where the used index stood at that
/// moment, and what was in flight would be done twice.
fn assert_completed_and_disconnected(mut guest: RequestDriver) {
    guest.wait_for_hang_up();
    assert!(guest.is_answered(0, 0));
    assert_eq!(guest.status(0, 0), 0);
}

#[test]
fn sigterm_sigint_and_sighup_shut_down_cleanly_with_and_without_a_front_end() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        for queues in [None, Some(4)] {
            let folder = Folder::new();
            let line = "serve null-co: --socket s --quiet --num-queues 4 --pidfile pid";
            let server = folder.start(line, "s");
            let guest = queues.map(|queues| front_end(&folder, "s", queues));
            server.signal(signal);
            server.ended().assert_success();
            if let Some(guest) = guest {
                guest.wait_for_hang_up();
            }
            assert_eq!(folder.names(), [""; 0], "{signal:?}");
        }
    }
}

/// A front-end that does not read its error descriptor, so that its writer would wait for ever, does not delay it. (For incomplete
/// messages see `control_threads`.)
#[test]
fn full_error_eventfd_does_not_delay_shutdown() {
    let folder = Folder::new();
    let mut server = folder.start("serve null-co: --socket s", "s");
    let wire = Wire::connect(&folder.join("s"));
    let memory = TestMemory::new(64 << 10);
    let queue = Queue::new(Ring::new(&memory, 8, RingFeatures::default()));
    wire.begin_session(1 << 3).unwrap();
    wire.share_memory(&memory).unwrap();
    let send = |request, payload: &[u8]| wire.message(request, VERSION, payload, &[]);
    let no_power_of_two = 3;
    send(SET_VRING_NUM, &u32s(&[0, no_power_of_two]));
    send(SET_VRING_ADDR, &queue.addresses(&memory, 0, 0));
    let full = event();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
    for (request, fd) in [(SET_VRING_ERR, &full), (SET_VRING_KICK, &queue.kick)] {
        wire.message(request, VERSION, &u64s(&[0]), &[fd.as_fd()]);
    }
    let log = server.stderr_file();
    server.wait_until("the queue was refused", || {
        text(&log).contains("not started")
    });
    server.stop();
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn shutdown_completes_requests_in_flight() {
    let folder = Folder::new();
    let (server, guest) = read_in_flight(&folder, 300_000_000);
    server.signal(Signal::TERM);
    assert_completed_and_disconnected(guest);
    server.ended().assert_success();
}

/// timeout(1) tells the process and then its group: meant as one. Nothing follows from an attempt in which that took longer.
#[test]
fn signal_repeated_within_100_ms_does_not_end_the_program_at_once() {
    eventually("a signal was repeated in time", || {
        let folder = Folder::new();
        let (server, guest) = read_in_flight(&folder, 300_000_000);
        let begin = Instant::now();
        server.signal(Signal::TERM);
        std::thread::sleep(REPEAT_INTERVAL / 5);
        server.signal(Signal::INT);
        let is_within = begin.elapsed() < REPEAT_INTERVAL;
        if is_within {
            assert_completed_and_disconnected(guest);
            server.ended().assert_success();
        }
        is_within
    });
}

#[test]
fn second_signal_ends_the_wait_for_requests() {
    let folder = Folder::new();
    let (mut server, mut guest) = read_in_flight(&folder, 3_600_000_000_000);
    // An impatient operator.
    let deadline = Deadline::default();
    while server.is_running() {
        server.signal(Signal::TERM);
        deadline.pause("the program ends");
    }
    let ended = server.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("second signal"), "{ended:?}");
    assert!(!guest.is_answered(0, 0));
}

/// Of many like it the latest line is held back; it has the number of the others.
#[test]
fn second_signal_loses_no_line_of_the_log() {
    const TIMES: u64 = 20;
    let folder = Folder::new();
    let (mut server, _guest) = read_in_flight(&folder, 3_600_000_000_000);
    for _ in 0..TIMES {
        let mut hostile = UnixStream::connect(folder.join("other")).unwrap();
        hostile.write_all(&[0xff; 12]).unwrap();
        // The connection ends.
        let _ = hostile.read(&mut [0; 1]);
    }
    let deadline = Deadline::default();
    while server.is_running() {
        server.signal(Signal::TERM);
        deadline.pause("the program ends");
    }
    let ended = server.ended();
    assert!(ended.stderr.contains("second signal"), "{ended:?}");
    let lines = ended.stderr.lines();
    let lines = lines.filter(|line| line.contains("the front-end is disconnected"));
    let count_with_left_out = |line: &str| {
        let left_out = line.split_once("left_out=").map_or("0", |(_, rest)| rest);
        let number = left_out.split(' ').next().unwrap_or_default();
        1 + number.parse::<u64>().unwrap()
    };
    assert_eq!(
        lines.map(count_with_left_out).sum::<u64>(),
        TIMES,
        "{ended:?}"
    );
}
