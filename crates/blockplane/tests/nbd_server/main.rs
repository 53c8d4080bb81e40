//! The NBD server of the real program, in its sandbox.
//!
//! - `bitmaps`: dirty bitmaps that exports show to their clients (`status_client` queries them).
//! - `clients`: clients of others: nbdinfo, nbdcopy, qemu-img, qemu-io.
//! - `how_to`: the script of a how-to page.
//! - `incremental`: full and incremental backups that clients pull while a guest writes.
//! - `killed`: the same across the death of the daemon.
//! - `requests`: requests byte by byte, by a client that sends what others do not.
//! - `snapshots`: the end of snapshots, and their old data.
//! - `limits`: clients that are silent, too many, or read nothing.
//! - `control`: the server and its exports are started, changed and removed while clients are connected.
//! - `tls`: encrypted connections, and clients that are not let in.
//! - `upgrades`: live upgrades.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod bitmaps;
mod clients;
mod control;
mod how_to;
mod incremental;
mod killed;
mod limits;
mod raw_client;
mod requests;
mod snapshots;
mod status_client;
mod tls;
mod upgrades;

use client::Client;
use process::{Folder, Process, words};
use raw_client::RawClient;
use serde_json::{Value, json};
use test_support::{process, qmp as client};

const MIB: u64 = 1 << 20;

/// Options for a monitor of the program.
const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";

/// Options for a server on the socket `nbd`.
const SERVER: &str = "--nbd-server addr.type=unix,addr.path=nbd";

/// The program with a monitor and these options besides, and a client of the monitor.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut program = Process::spawn(folder.command(words(&format!("{line} {MONITOR}"))));
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// Options for a server with a writable export `d` of the image `disk`, and more options of it, after which others may follow.
fn disk_line(export: &str) -> String {
    format!(
        "--blockdev file,node-name=d,filename=disk,cache.direct=off {SERVER} \
         --export nbd,id=e,node-name=d,writable=on{export}"
    )
}

/// A server with two iothreads and such an export of a disk of so many bytes, a client of its monitor, and one that has entered the export.
fn serve(bytes: u64, export: &str) -> (Folder, Process, Client, RawClient) {
    let folder = Folder::new();
    folder.image("disk", bytes);
    let iothreads = "--object iothread,id=a --object iothread,id=b";
    let (program, monitor) = start(&folder, &format!("{iothreads} {}", disk_line(export)));
    let client = RawClient::enter(&folder, "d");
    (folder, program, monitor, client)
}

/// Removes an export with its clients.
fn remove_export(monitor: &mut Client, id: &str) {
    monitor.done("block-export-del", json!({"id": id, "mode": "hard"}));
    monitor.event("BLOCK_EXPORT_DELETED", id);
}

/// Arguments of a job `j` that keeps the old data of a node.
fn keep_old_data(device: &str, target: &str) -> Value {
    json!({"job-id": "j", "device": device, "target": target, "sync": "none"})
}

/// Cancels the job `j`.
fn cancel_job(monitor: &mut Client) {
    monitor.execute("job-cancel id=j");
    monitor.wait_for_event("BLOCK_JOB_CANCELLED");
}
