//! Shutdown by signals: the first completes requests, the second ends the program at once.

use rustix::process::Signal;
use test_support::deadline::Deadline;

use crate::front_end::{FrontEnd, GET_ID, READ};
use crate::process::{Folder, Process, text};

/// A disk whose reads take this long.
fn slow_disk(folder: &Folder, latency_ns: u64) -> Process {
    folder.start(
        &format!(
            "--blockdev null-co,node-name=d,size=1M,latency-ns={latency_ns} \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s"
        ),
        "s",
    )
}

/// A request of which it is certain that it is in flight: one that was made after it, in the same
/// kick, is answered.
fn read_in_flight(folder: &Folder) -> FrontEnd {
    let front_end = FrontEnd::connect(&folder.join("s"));
    front_end.start_queues(1);
    front_end.submit(&[READ, GET_ID]);
    front_end.wait_until_completed(1);
    assert_eq!(front_end.completed(), [1]);
    front_end
}

#[test]
fn sigterm_sigint_and_sighup_shut_down_cleanly() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = Folder::new();
        let server = folder.start("serve null-co: --socket s --quiet --pidfile pid", "s");
        server.signal(signal);
        server.ended().assert_success();
        assert_eq!(folder.names(), [""; 0], "{signal:?}");
    }
}

#[test]
fn connected_front_end_does_not_delay_shutdown() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let folder = Folder::new();
        let server = folder.start("serve null-co: --socket s --quiet --num-queues 4", "s");
        let front_end = FrontEnd::connect(&folder.join("s"));
        front_end.start_queues(4);
        server.signal(signal);
        server.ended().assert_success();
        front_end.wait_for_hang_up();
        assert_eq!(folder.names(), [""; 0], "{signal:?}");
    }
}

/// A front-end that sends nothing, or stops in the middle of a message, does not delay it either.
#[test]
fn incomplete_message_does_not_delay_shutdown() {
    use std::io::Write;
    let folder = Folder::new();
    let server = folder.start("serve null-co: --socket s --quiet", "s");
    let mut stream = test_support::sockets::connect(&folder.join("s"));
    stream.write_all(&[1, 0, 0]).unwrap();
    server.stop().assert_success();
}

/// A front-end that does not read its error descriptor does not delay it either.
#[test]
fn full_error_eventfd_does_not_delay_shutdown() {
    let folder = Folder::new();
    let mut server = folder.start("serve null-co: --socket s", "s");
    let front_end = FrontEnd::connect(&folder.join("s"));
    front_end.start_to_fail_unheard();
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
    let server = slow_disk(&folder, 300_000_000);
    let front_end = read_in_flight(&folder);
    server.stop().assert_success();
    assert_eq!(front_end.completed(), [1, 0]);
    assert_eq!([front_end.status(0), front_end.status(1)], [0, 0]);
}

#[test]
fn second_signal_ends_the_wait_for_requests() {
    let folder = Folder::new();
    let mut server = slow_disk(&folder, 3_600_000_000_000);
    let front_end = read_in_flight(&folder);
    // An impatient operator.
    let deadline = Deadline::default();
    while server.is_running() {
        server.signal(Signal::TERM);
        deadline.pause("the program ends");
    }
    let ended = server.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("second signal"), "{ended:?}");
    assert_eq!(front_end.completed(), [1]);
}

/// timeout(1) tells the process and then its group: meant as one.
#[test]
fn repeated_signal_within_a_moment_counts_once() {
    let folder = Folder::new();
    let server = slow_disk(&folder, 500_000_000);
    let front_end = read_in_flight(&folder);
    server.signal(Signal::TERM);
    server.signal(Signal::TERM);
    server.ended().assert_success();
    assert_eq!(front_end.completed(), [1, 0]);
}

/// A front-end that comes back goes on where the used index stood when it was hung up on: at that
/// moment nothing may be in flight any more, or it would be done twice.
#[test]
fn front_end_is_disconnected_after_its_requests_complete() {
    let folder = Folder::new();
    let server = slow_disk(&folder, 300_000_000);
    let front_end = read_in_flight(&folder);
    server.signal(Signal::TERM);
    front_end.wait_for_hang_up();
    assert_eq!(front_end.completed(), [1, 0]);
    server.ended().assert_success();
}
