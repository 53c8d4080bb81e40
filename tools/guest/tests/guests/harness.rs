//! The harness itself: a test that relies on it must not pass when a guest is not satisfied.

use std::time::Duration;

use guest::{Boot, Server};

use crate::{disk, serve};

/// It looks for a file system on a new disk.
#[test]
fn failed_step_fails_the_run_with_the_console_and_the_log_of_the_daemon() {
    let (_folder, options) = disk(64 << 20);
    let server = serve(&options);
    let error = Boot::new(&server, "second_boot").run().unwrap_err();
    let text = error.to_string();
    for expected in [
        "step `check_filesystem` failed: status 8",
        // Of the console.
        "BP: size_bytes=67108864",
        // Of the daemon.
        "front-end connected",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    server.stop().unwrap();
}

#[test]
fn guest_that_takes_too_long_is_ended_and_its_server_lives_on() {
    let (_folder, options) = disk(64 << 20);
    let server = serve(&options);
    let boot = Boot::new(&server, "first_boot").limit(Duration::from_millis(500));
    let error = boot.run().unwrap_err().to_string();
    assert!(error.contains("was not done after 500ms"), "{error}");
    server.stop().unwrap();
}

#[test]
fn guest_without_a_server_fails_with_the_reason() {
    let (_folder, options) = disk(64 << 20);
    let server = serve(&options);
    std::fs::remove_file(server.socket()).unwrap();
    let error = Boot::new(&server, "first_boot").run().unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    let error = Server::start("/bin/false".as_ref(), &options).unwrap_err();
    assert!(error.to_string().contains("ended by itself"), "{error}");
}
