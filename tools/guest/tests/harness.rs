//! The harness itself: a test that relies on it must not pass when a guest is not satisfied.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::thread;
use std::time::{Duration, Instant};

use guest::{Boot, Error, Program, Scenario, Server, ServerOptions};

/// A warning of the daemon.
const FAILED: &str = "a request to the disk has failed";

fn serve() -> (tempfile::TempDir, Server) {
    let folder = guest::disk_folder().unwrap();
    let options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    (folder, server)
}

#[test]
fn a_guest_that_finds_another_serial_fails_the_run() {
    let (_folder, server) = serve();
    let error = Boot::new(&server, Scenario::FirstBoot)
        .expect_serial("ANOTHER")
        .run()
        .unwrap_err();
    let Error::StepFailed {
        step,
        reason,
        console,
        daemon,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(step, "look");
    assert!(reason.contains("the host expected 'ANOTHER'"), "{reason}");
    assert!(console.contains("BP: size_bytes=67108864"), "{console}");
    assert!(daemon.contains("front-end connected"), "{daemon}");
}

/// A disk with a filter that makes requests fail; they wait then.
fn serve_faults(folder: &tempfile::TempDir) -> Server {
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), 128 << 20);
    options.monitor = true;
    options.faults = true;
    guest::boot_disk(&options.disk, options.size_bytes, Scenario::Booted, None)
        .unwrap_or_else(|error| panic!("{error}"));
    Server::start(&guest::blockplane().unwrap(), &options).unwrap_or_else(|error| panic!("{error}"))
}

fn fail(server: &Server, rules: &str) {
    let arguments = format!(r#"{{"node-name": "b", "inject-error": [{rules}]}}"#);
    server
        .execute("x-blkdebug-set", &arguments)
        .unwrap_or_else(|error| panic!("{error}"));
}

/// The firmware's first read gets no answer. It would wait for ever, and prints nothing.
#[test]
fn a_firmware_that_hangs_ends_the_run_with_the_log_of_the_daemon() {
    let folder = guest::disk_folder().unwrap();
    let server = serve_faults(&folder);
    fail(&server, r#"{"errno": 5}"#);
    let begin = Instant::now();
    let error = Boot::new(&server, Scenario::Booted)
        .from_disk()
        .silence_limit(Duration::from_secs(15))
        .run()
        .unwrap_err();
    let text = error.to_string();
    let Error::Silent { limit, daemon, .. } = error else {
        panic!("{text}")
    };
    assert_eq!(limit, Duration::from_secs(15));
    assert!(begin.elapsed() >= limit, "{text}");
    for expected in ["WARN", "a request to the disk has failed"] {
        assert!(daemon.contains(expected), "{daemon}");
        assert!(text.contains(expected), "{text}");
    }
    server.check_running().unwrap();
}

/// Requests fail and are tried again later: the guest is content, and its report has the daemon's warnings.
#[test]
fn the_report_of_a_guest_has_the_warnings_of_the_daemon() {
    let folder = guest::disk_folder().unwrap();
    let server = serve_faults(&folder);
    let report = Boot::new(&server, Scenario::Crashes)
        .run_asking(|_| {
            fail(&server, r#"{"errno": 5, "once": true}"#);
            let start = Instant::now();
            while !server.warnings().iter().any(|line| line.contains(FAILED)) {
                assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "no request fails"
                );
                thread::sleep(Duration::from_millis(10));
            }
            server
                .execute("block-export-resume", r#"{"id": "e"}"#)
                .unwrap_or_else(|error| panic!("{error}"));
        })
        .unwrap_or_else(|error| panic!("{error}"));
    let warnings = report.daemon_warnings();
    assert!(
        warnings.iter().any(|line| line.contains(FAILED)),
        "{warnings:?}"
    );
    assert!(
        report.transcript().contains(&warnings[0]),
        "{}",
        report.transcript()
    );
}

/// The guest is cut off while it boots: this is about the limit, not about requests in flight.
#[test]
fn a_guest_that_takes_too_long_is_ended_and_its_server_lives_on() {
    let (_folder, server) = serve();
    let error = Boot::new(&server, Scenario::FirstBoot)
        .limit(Duration::from_millis(500))
        .run()
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    server.check_running().unwrap();
    server.stop().unwrap();
}

#[test]
fn guest_without_a_server_fails_with_the_reason() {
    let (_folder, server) = serve();
    std::fs::remove_file(server.socket()).unwrap();
    let error = Boot::new(&server, Scenario::FirstBoot).run().unwrap_err();
    let Error::GuestDied { stderr, .. } = error else {
        panic!("{error}")
    };
    assert!(stderr.contains("No such file"), "{stderr}");
}

#[test]
fn server_that_does_not_start_fails_with_the_reason() {
    let folder = guest::disk_folder().unwrap();
    let options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    let error = Server::start(&Program::Blockplane("/bin/false".into()), &options).unwrap_err();
    assert!(error.to_string().contains("ended by itself"), "{error}");
}
