//! The harness itself: a test that relies on it must not pass when a guest is not satisfied.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::time::Duration;

use guest::{Boot, Error, Program, Scenario, Server, ServerOptions};

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
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(step, "look");
    assert!(reason.contains("the host expected 'ANOTHER'"), "{reason}");
    assert!(console.contains("BP: size_bytes=67108864"), "{console}");
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
fn a_guest_without_a_server_says_why() {
    let (_folder, server) = serve();
    std::fs::remove_file(server.socket()).unwrap();
    let error = Boot::new(&server, Scenario::FirstBoot).run().unwrap_err();
    let Error::GuestDied { stderr, .. } = error else {
        panic!("{error}")
    };
    assert!(stderr.contains("No such file"), "{stderr}");
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let folder = guest::disk_folder().unwrap();
    let options = ServerOptions::new(&folder.path().join("disk.img"), 64 << 20);
    let error = Server::start(&Program::Blockplane("/bin/false".into()), &options).unwrap_err();
    assert!(error.to_string().contains("ended by itself"), "{error}");
}
