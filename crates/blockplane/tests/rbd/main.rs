//! Images of a real Ceph cluster, served by the real program in its sandbox.
//!
//! - `data`: what front-ends write is what Ceph's own tools read; discards, zeroes, snapshots.
//! - `resize`: images that grow and shrink while guests use them, also behind a window.
//! - `osd_faults`: OSDs and monitors that end, restart and pause under a verifying load; clusters that do not answer.
//! - `full_pool`: a quota that is reached, and lifted.
//! - `lost_images`: images that are removed, renamed or cut while they are served; clients that the cluster refuses.
//! - `unreachable`: a monitor that accepts connections and says nothing.
//! - `locks`: one writer at a time, also after a crash and in a migration.
//! - `seen`: state for operators: monitors, metrics, `blockplane info` and `top`, and the log.
//! - `upgrade`: live upgrades under a verifying load.
//! - `secrets`: keys that are given as secrets, and users with no more rights than they need.
//! - `sandbox`: images that a monitor adds.
//! - `many_images`: threads, descriptors, watchers and connections of many images.
//!
//! Tests share a cluster, each with images of its own; those that stop its daemons have a cluster of their own.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod data;
mod disk;
mod full_pool;
mod locks;
mod lost_images;
mod many_images;
mod osd_faults;
mod resize;
mod sandbox;
mod secrets;
mod seen;
mod unreachable;
mod upgrade;

use client::Client;
use disk::Disk;
use process::{Folder, Process, words};
use test_support::ceph::Cluster;
use test_support::{process, qmp as client, request_driver};

const MIB: u64 = 1 << 20;
/// The status of a request that has failed.
const IOERR: u8 = 1;

/// Options for a monitor of the program.
const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    start_logging(folder, line, "warn")
}

/// The same with a log of this level.
fn start_logging(folder: &Folder, line: &str, level: &str) -> (Process, Client) {
    let mut command = folder.command(words(&format!("{line} {MONITOR}")));
    command.env("BLOCKPLANE_LOG", level);
    let mut program = Process::spawn(command);
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// A new image of 1 MiB in the shared cluster; `None`, with a report, if there are no programs of Ceph.
fn new_disk(name: &'static str) -> Option<Disk<'static>> {
    Cluster::shared_or_report().map(|cluster| Disk::create(cluster, name))
}

/// Such an image, served with these options of its node and its export.
fn serve(
    name: &'static str,
    node: &str,
    export: &str,
) -> Option<(Disk<'static>, Folder, Process, Client)> {
    let disk = new_disk(name)?;
    let folder = Folder::new();
    let (program, client) = start(&folder, &disk.line_with(node, export));
    Some((disk, folder, program, client))
}
