//! A disk that runs out of space under a real guest, and a server that is killed meanwhile.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guest::{Boot, Scenario, Server, ServerOptions};

const DISK_BYTES: u64 = 96 << 20;
/// What has not happened after this time never will.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// A file system in memory, of so many MiB.
struct Small(tempfile::TempDir);

impl Small {
    /// `None`: only root can have it, which is reported.
    fn mounted(mib: u32) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={mib}m");
        if mount(&["-t", "tmpfs", "-o", &options, "tmpfs"], folder.path()) {
            return Some(Small(folder));
        }
        test_support::report::not_run(
            "a disk that fills up is on a tmpfs, and mounting one needs root",
        );
        None
    }

    fn grow(&self, mib: u32) {
        let options = format!("remount,size={mib}m");
        assert!(mount(&["-o", &options], self.0.path()));
    }
}

fn mount(arguments: &[&str], place: &Path) -> bool {
    let status = Command::new("mount").args(arguments).arg(place).status();
    status.is_ok_and(|status| status.success())
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Waits until requests wait for space.
fn until_full(server: &Server) {
    let begin = Instant::now();
    loop {
        let exports = server.query("query-block-exports", "{}");
        let exports = exports.unwrap_or_else(|error| panic!("{error}"));
        if !exports.replace(' ', "").contains(r#""waiting-requests":0"#) {
            return;
        }
        assert!(begin.elapsed() < STUCK_AFTER, "{exports}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_guest_notices_neither_that_its_disk_was_full_nor_that_its_server_was_killed_then() {
    let Some(small) = Small::mounted(16) else {
        return;
    };
    let mut options = ServerOptions::new(&small.0.path().join("disk.img"), DISK_BYTES);
    options.num_queues = 2;
    options.monitor = true;
    options.waits_for_space = true;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let report = Boot::new(&server, Scenario::FullDisk)
            .reconnecting()
            .run_asking(|question| {
                assert_eq!(question, "full");
                until_full(&server);
                server.crash().unwrap_or_else(|error| panic!("{error}"));
                until_full(&server);
                small.grow(128);
                // What was on its way when there was no space yet waits as well.
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let _ = server.execute("block-export-resume", r#"{"id": "e"}"#);
                        thread::sleep(Duration::from_millis(100));
                    }
                });
            });
        ended.store(true, Ordering::Relaxed);
        report.unwrap_or_else(|error| panic!("{error}"));
    });
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}
