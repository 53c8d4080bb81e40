//! A disk that runs out of space under a real guest, and a server that is killed meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use guest::{Boot, ServerOptions};
use serde_json::json;
use test_support::mounted_folder::MountedFolder;
use test_support::repeating_thread::while_repeating;

use crate::{serve, wait_until};

#[test]
#[ignore = "full run only"]
fn guest_notices_neither_that_its_disk_was_full_nor_that_its_server_was_killed_then() {
    let Some(small) = MountedFolder::small_tmpfs(16 << 10) else {
        return;
    };
    let mut options = ServerOptions::new(&small.path().join("disk.img"), 96 << 20);
    options.num_queues = 2;
    options.monitor = true;
    options.waits_for_space = true;
    let server = serve(&options);
    let requests_wait = || {
        let exports = server.query("query-block-exports", &json!({})).unwrap();
        exports[0]["waiting-requests"].as_u64() > Some(0)
    };
    let has_space = AtomicBool::new(false);
    let resume = || {
        if has_space.load(Ordering::Relaxed) {
            let _ = server.query("block-export-resume", &json!({"id": "e"}));
        }
        thread::sleep(Duration::from_millis(100));
    };
    // Repeated: requests that reached the disk before it had space are parked later.
    let report = while_repeating(resume, || {
        Boot::new(&server, "full_disk")
            .reconnecting()
            .run_asking(|_, _| {
                wait_until("requests wait for space", requests_wait);
                server.crash().unwrap();
                wait_until("the next process has them wait as well", requests_wait);
                small.resize_tmpfs(128 << 10);
                has_space.store(true, Ordering::Relaxed);
            })
    });
    report.unwrap();
    server.stop().unwrap();
}
