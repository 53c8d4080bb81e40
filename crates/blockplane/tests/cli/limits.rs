//! Inherited limits (`ulimit`): operations beyond a limit fail, and nothing else does.

use crate::front_end::{FrontEnd, READ, WRITE};
use crate::process::{Folder, Process, text, words};

/// Writes no file beyond its first MiB (POSIX counts blocks of 512 bytes).
const ONE_MIB_PER_FILE: &str = r#"ulimit -f 2048; exec "$0" "$@""#;

const IOERR: u8 = 1;

#[test]
fn a_write_beyond_the_limit_on_file_sizes_fails_and_the_disk_goes_on() {
    for aio in ["native", "io_uring", "threads"] {
        let folder = Folder::new();
        folder.image("disk.img", 4 << 20);
        let line = format!("serve disk.img --socket s --aio {aio}");
        let mut server = Process::spawn(folder.command_after(ONE_MIB_PER_FILE, words(&line)));
        server.wait_until_accepting(&folder.join("s"));
        // Each front-end is the next one: the daemon is still the same.
        for (kind, sector, status) in [(WRITE, 4096, IOERR), (READ, 4096, 0), (WRITE, 0, 0)] {
            let front_end = FrontEnd::connect(&folder.join("s"));
            front_end.start_queues(1);
            front_end.submit_at(&[kind], sector);
            front_end.wait_until_completed(1);
            assert_eq!(front_end.status(0), status, "{aio}: {kind} at {sector}");
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
    server.wait_until_accepting(&folder.join("s"));
    FrontEnd::connect(&folder.join("s")).bring_descriptors_until_hang_up();
    let log = server.stderr_file();
    server.wait_until("it says why", || text(&log).contains("ulimit -n"));
    assert!(!text(&log).contains("bad message"), "{}", text(&log));
    // Nothing is left of it.
    let next = FrontEnd::connect(&folder.join("s"));
    next.start_queues(1);
    next.submit(&[READ]);
    next.wait_until_completed(1);
    assert_eq!(next.status(0), 0);
    server.stop();
}
