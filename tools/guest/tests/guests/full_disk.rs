//! A disk that runs out of space under a real guest, and a server that is killed meanwhile.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use guest::{Boot, ServerOptions};
use serde_json::json;

use crate::{serve, wait_until};

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

#[test]
#[ignore = "full run only"]
fn guest_notices_neither_that_its_disk_was_full_nor_that_its_server_was_killed_then() {
    let Some(small) = Small::mounted(16) else {
        return;
    };
    let mut options = ServerOptions::new(&small.0.path().join("disk.img"), 96 << 20);
    options.num_queues = 2;
    options.monitor = true;
    options.waits_for_space = true;
    let server = serve(&options);
    let requests_wait = || {
        let exports = server.query("query-block-exports", &json!({})).unwrap();
        exports[0]["waiting-requests"].as_u64() > Some(0)
    };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let report = Boot::new(&server, "full_disk")
            .reconnecting()
            .run_asking(|_, _| {
                wait_until("requests wait for space", requests_wait);
                server.crash().unwrap();
                wait_until("the next process has them wait as well", requests_wait);
                small.grow(128);
                // What was on its way when there was no space yet waits as well.
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let _ = server.query("block-export-resume", &json!({"id": "e"}));
                        thread::sleep(Duration::from_millis(100));
                    }
                });
            });
        ended.store(true, Ordering::Relaxed);
        report.unwrap();
    });
    server.stop().unwrap();
}
