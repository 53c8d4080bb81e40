//! Monitors of the real program: what can be asked, and what it changes.
//!
//! - `chardev`: how clients reach a monitor, and how it ends.
//! - `objects`, `nodes`, `exports`: what is added, looked at, changed and removed.
//! - `faults`: faults on purpose, and what becomes of disks that have them.
//! - `filters_in_use`: filters that are put in front of running disks, and taken away.
//! - `luns`: units of SCSI controllers.
//! - `human`: what people ask, in QEMU's words.
//! - `stats`: figures that agree with what a guest did.
//! - `histograms`: latencies between boundaries that a client chose, of what a guest did.
//! - `trouble`: events of failed requests and of broken queues.
//! - `metrics`: the same figures as Prometheus gets them (`scraper`), from a daemon that does not notice.
//! - `tuning`: what is set while it works is so in the kernel, and under load.
//! - `reopen`: nodes get other options while guests use them.
//! - `locked`: nobody gets an image's lock meanwhile (`contender` tries).
//! - `resize`: disks become larger and smaller while guests use them.
//! - `shell`: the same from a shell, by `blockplane qmp` and `blockplane info`.
//! - `top`: what `blockplane top` shows is what guests did.
//! - `policies`: requests that the disk fails wait, are ignored or reported, and none waits for ever.
//! - `error_policies`: every policy with every kind of request and error, and what SCSI has in their place.
//! - `neighbour`: what a guest notices of all this on another export: nothing.
//! - `waiting`: a disk that hangs holds up nobody but who wants it (`born` holds a thread that would open one).
//! - `crowd`: many clients at once, one of which never reads.
//! - `slow_monitor`: a client that does not read for a while is told of everything all the same.
//! - `traced`: what a tracer sees of guests' requests.
//! - `anything`: a client that says all there is to say, in right types and wrong ones.
//! - `scsi`: what guests did to the units of a controller, in all that tells figures.
//! - `compared`: a script for qemu-storage-daemon, answer by answer.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod active;
mod anything;
mod born;
mod chardev;
mod compared;
#[allow(dead_code, reason = "shared with another suite")]
mod contender;
mod crowd;
mod error_policies;
mod exports;
mod faults;
mod filters_in_use;
mod histograms;
mod human;
mod locked;
mod luns;
mod metrics;
mod neighbour;
mod nodes;
mod objects;
mod policies;
mod reopen;
mod resize;
mod scraper;
mod scsi;
mod shell;
mod slow_monitor;
mod stats;
mod top;
#[cfg(target_arch = "x86_64")]
mod traced;
mod trouble;
mod tuning;
mod waiting;

use client::Client;
use process::{Folder, Process};
use test_support::{guest, process, qmp as client};

const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut program = Process::spawn(folder.command(process::words(&format!("{line} {MONITOR}"))));
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}
