//! Inherited limits (`ulimit`): operations beyond a limit fail, and nothing else does.

use std::os::fd::AsFd;

use test_support::vhost_user::wire::*;

use crate::front_end;
use crate::process::{Folder, Process, text, words};
use crate::request_driver::{IN, OUT, RequestDriver};

/// Writes no file beyond its first MiB (POSIX counts blocks of 512 bytes).
const ONE_MIB_PER_FILE: &str = r#"ulimit -f 2048; exec "$0" "$@""#;

const IOERR: u8 = 1;

/// The status of a request.
fn status(guest: &mut RequestDriver, kind: u32, block: u64) -> u8 {
    guest.ask(0, 0, kind, block, 0);
    guest.watch(0, 0);
    guest.status(0, 0)
}

#[test]
fn a_write_beyond_the_limit_on_file_sizes_fails_and_the_disk_goes_on() {
    for aio in ["native", "io_uring", "threads"] {
        let folder = Folder::new();
        folder.image("disk.img", 4 << 20);
        let line = format!("serve disk.img --socket s --aio {aio}");
        let mut server = Process::spawn(folder.command_after(ONE_MIB_PER_FILE, words(&line)));
        server.wait_until_accepting(&folder.join("s"));
        // Each front-end is the next one: the daemon is still the same.
        for (kind, block, expected) in [(OUT, 512, IOERR), (IN, 512, 0), (OUT, 0, 0)] {
            let found = status(&mut front_end(&folder, "s", 1), kind, block);
            assert_eq!(found, expected, "{aio}: {kind} at {block}");
        }
        server.stop();
    }
}

#[test]
fn a_disk_larger_than_the_limit_on_file_sizes_is_refused_with_the_reason() {
    let folder = Folder::new();
    let line = words("serve disk.img --size 2M");
    let ended = Process::spawn(folder.command_after(ONE_MIB_PER_FILE, line)).ended();
    ended.assert_fails_naming(&["disk.img", "File too large"]);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn log_distinguishes_exhausted_descriptors_from_an_invalid_message() {
    const FEW_FILES: &str = r#"ulimit -n 40; exec "$0" "$@""#;
    let folder = Folder::new();
    let line = words("serve null-co: --socket s --num-queues 64");
    let mut server = Process::spawn(folder.command_after(FEW_FILES, line));
    let wire = Wire::new(server.connection(&folder.join("s")));
    wire.begin_session(1).unwrap();
    let call = test_support::events::event();
    for index in 0..64 {
        wire.message(SET_VRING_CALL, VERSION, &u64s(&[index]), &[call.as_fd()]);
    }
    wire.wait_for_hang_up();
    let log = server.stderr_file();
    server.wait_until("it says why", || text(&log).contains("ulimit -n"));
    assert!(!text(&log).contains("bad message"), "{}", text(&log));
    // Nothing is left of it.
    assert_eq!(status(&mut front_end(&folder, "s", 1), IN, 0), 0);
    server.stop();
}
