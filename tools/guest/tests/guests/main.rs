//! Real guests: real drivers, firmware and front-ends on disks that blockplane serves.
//!
//! One program for all of them, so that two guests run at a time. What runs for each change is a guest or two for each device and each
//! kind of event; everything else is run by the full run only. Where QEMU or the kernel cannot be had, the tests fail and say what to
//! install. Where Ceph or root rights are missing, the tests that need them report that they do not run.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

mod ceph;
mod controller;
mod demo;
mod full_disk;
mod harness;
mod host_adapter;
mod hot_plug;
mod kills;
mod matrix;
mod moves;
mod sg3_utils;
mod virtio_disk;

use std::thread;
use std::time::{Duration, Instant};

use guest::{Server, ServerOptions};

/// Long enough for QEMU to have connected again (it tries each second) and for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(1600);
/// For what happens in any case, on a busy machine.
const SURELY: Duration = Duration::from_secs(120);

/// A new disk in a folder that lives as long as the test.
fn disk(size_bytes: u64) -> (tempfile::TempDir, ServerOptions) {
    let folder = guest::disk_folder().unwrap();
    let options = ServerOptions::new(&folder.path().join("disk.img"), size_bytes);
    (folder, options)
}

fn serve(options: &ServerOptions) -> Server {
    Server::start(&guest::blockplane().unwrap(), options).unwrap()
}

/// Kills the server so often under a guest at work.
fn kill_again_and_again(server: &Server, kills: u64) {
    for kill in 0..kills {
        // Not always at the same point of what the guest does.
        thread::sleep(AT_WORK + Duration::from_millis(kill * 37 % 100));
        server.crash().unwrap();
    }
    thread::sleep(AT_WORK);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SURELY;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {SURELY:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
