//! Monitor commands of the real program: their replies and their effects.
//!
//! - `chardev`: sockets of monitors, and shutdown over a monitor.
//! - `nodes`, `exports`: adding, querying, changing and removing.
//! - `active`: inactive nodes.
//! - `bitmaps`: dirty bitmaps that miss no write of a busy guest; `bitmap_comparison`: their commands, as qemu-storage-daemon answers
//!   them; `persistent_bitmaps`: those that outlive the daemon.
//! - `faults`: fault injection, and disks that have faults.
//! - `filters_in_use`: filters that are inserted under running disks and removed.
//! - `human_monitor`: QEMU's human monitor commands.
//! - `stats`: statistics that agree with what a guest did.
//! - `histograms`: latency histograms with boundaries that a client chose.
//! - `metrics`: Prometheus metrics, which must not disturb guests.
//! - `tuning`: iothreads, and settings that are changed under load and checked in the kernel.
//! - `reopen`: nodes that get other options while guests use them; image locks are never released meanwhile (a `LockContender` tries).
//! - `resize`: disks that grow and shrink while guests use them.
//! - `secrets`: keys and passwords, which no answer and no log line shows.
//! - `throttle`: limits that are changed while requests wait, and ends that do not wait for them.
//! - `shell`: `blockplane qmp` and `blockplane info`.
//! - `top`: `blockplane top` agrees with what guests did.
//! - `failed_and_late_requests`: failed requests are parked, ignored or reported, and late ones are reported; events of them, and of broken queues.
//! - `error_policy_matrix`: every policy with every kind of request and error, and sense data of SCSI disks.
//! - `exports_come_and_go`: a thousand exports, which leave nothing and do not disturb a guest on another one.
//! - `blocked_commands`: a disk that hangs blocks only its own commands (a `StoppedThread` serves or opens one).
//! - `many_clients`: many clients at once, one of which never reads; a client that does not read for a while gets every event.
//! - `probes`: USDT probes of guests' requests.
//! - `random_commands`: a client that sends random commands, valid and invalid.
//! - `scsi`: units of controllers, and their statistics.
//! - `qemu_comparison`: a script for qemu-storage-daemon, reply by reply.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod active;
mod bitmap_comparison;
mod bitmaps;
mod blocked_commands;
mod chardev;
mod error_policy_matrix;
mod exports;
mod exports_come_and_go;
mod failed_and_late_requests;
mod faults;
mod filters_in_use;
mod histograms;
mod human_monitor;
mod many_clients;
mod metrics;
mod nodes;
mod persistent_bitmaps;
#[cfg(target_arch = "x86_64")]
mod probes;
mod qemu_comparison;
mod random_commands;
mod reopen;
mod resize;
mod scsi;
mod secrets;
mod shell;
mod stats;
mod throttle;
mod top;
mod tuning;

use client::Client;
use process::{Folder, Process};
use test_support::undisturbed_guest::UndisturbedGuest;
use test_support::{process, qmp as client, request_driver};

const MIB: u64 = 1 << 20;

const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";

/// An export of the image `disk` on the iothread `a`, for [`start_undisturbed_guest`].
const EXPORT_OF_UNDISTURBED_GUEST: &str = "--object iothread,id=a \
    --blockdev file,node-name=n,filename=disk \
    --export vhost-user-blk,id=undisturbed,node-name=n,addr.type=unix,addr.path=undisturbed.sock,\
writable=on,iothread=a";

/// Connects to [that export](EXPORT_OF_UNDISTURBED_GUEST).
fn start_undisturbed_guest(folder: &Folder) -> UndisturbedGuest {
    UndisturbedGuest::start(&folder.join("undisturbed.sock"), 1)
}

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut program = Process::spawn(folder.command(process::words(&format!("{line} {MONITOR}"))));
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// The same in a folder of its own, with an empty image `disk` of 1 MiB.
fn start_with_disk(line: &str) -> (Folder, Process, Client) {
    start_with_images(&["disk"], line)
}

/// The same with images of these names.
fn start_with_images(names: &[&str], line: &str) -> (Folder, Process, Client) {
    let folder = Folder::new();
    for name in names {
        folder.image(name, MIB);
    }
    let (program, client) = start(&folder, line);
    (folder, program, client)
}
