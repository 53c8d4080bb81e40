//! Jobs of the real program: copies of disks as of one moment, while front-ends write.
//!
//! - `moment`: full and incremental backups are what the disk was at their moment, whatever is written meanwhile.
//! - `killed`: the same across the death of the daemon.
//! - `several_disks`: a transaction copies several disks as of the same moment.
//! - `bitmaps`: what is clean after a job that succeeds, fails or is cancelled.
//! - `errors`: disks that fail or are full, and their policies.
//! - `control`: commands and events, as qemu-storage-daemon has them; what is refused meanwhile.
//! - `create`: images that `blockdev-create` makes.
//! - `mirror`, `switch_over`: mirrors, their commands and errors; guests that go over to another disk while they write.
//! - `ends`: jobs that are cancelled, or end with the daemon; live upgrades.
//! - `clones`: disks in files that share extents.
//! - `commands`: `blockplane backup`, `mirror` and `bitmap`.
//! - `lost_writes`: targets that are exports of a server that was started again.
//! - `nbdkit`: targets that are exports of nbdkit, slow or failing.
//! - `pace`: the copier gives way to guests.
//! - `waits`: jobs that begin or end while an iothread or a target hangs.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails where it is"
)]

mod bitmaps;
mod clones;
mod commands;
mod control;
mod create;
mod ends;
mod errors;
mod first_run;
mod killed;
mod load;
mod lost_writes;
mod mirror;
mod moment;
mod nbd_target;
mod nbdkit;
mod own_exports;
mod pace;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../nbd_client/servers.rs"]
mod servers;
mod several_disks;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../qmp/stopped_thread.rs"]
mod stopped_thread;
mod switch_over;
#[allow(dead_code, reason = "shared with another suite")]
#[path = "../upgrade/daemon.rs"]
mod upgraded_daemon;
mod waits;

use client::Client;
use process::{Folder, Process};
use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::{guest, process, qmp as client};

const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";
const MIB: u64 = 1 << 20;

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut program = Process::spawn(folder.command(process::words(&format!("{line} {MONITOR}"))));
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// A file of these bytes, which are not zero, and another one, both opened; the first one is exported.
fn start_with_disks(folder: &Folder, bytes: u64, further: &str) -> (Process, Client) {
    let content: Vec<u8> = (0..bytes)
        .map(|at| u8::try_from(at / 512 % 251 + 1).unwrap())
        .collect();
    std::fs::write(folder.join("disk.img"), content).unwrap();
    folder.image("copy.img", bytes);
    start(
        folder,
        &format!(
            "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off \
             --blockdev file,node-name=copy,filename=copy.img,cache.direct=off {further}"
        ),
    )
}

/// Arguments of a backup of `disk` to `copy` by the job `j`, and others that replace them.
fn backup(sync: &str, others: Value) -> Value {
    let mut arguments = json!({"job-id": "j", "device": "disk", "target": "copy", "sync": sync});
    for (key, value) in others.as_object().unwrap() {
        arguments[key] = value.clone();
    }
    arguments
}

/// Waits for the end of the job `j`, and returns its event.
#[track_caller]
fn completed(client: &mut Client) -> Value {
    let data = client.wait_for_event("BLOCK_JOB_COMPLETED");
    assert_eq!(data["device"], "j");
    data
}

/// Waits until the job has copied something.
fn await_progress(client: &mut Client) {
    eventually("something is copied", || {
        client.done("query-jobs", json!({}))[0]["current-progress"].as_u64() > Some(0)
    });
}

/// The file has the same content as another one.
#[track_caller]
fn assert_same_content(folder: &Folder, one: &str, two: &str) {
    let [one, two] = [one, two].map(|name| std::fs::read(folder.join(name)).unwrap());
    assert!(one == two);
}

/// The bitmaps of a node.
fn bitmaps(client: &mut Client, node: &str) -> Vec<Value> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let mut nodes = nodes.as_array().unwrap().iter();
    let found = nodes.find(|found| found["node-name"] == node).unwrap();
    let bitmaps = found["dirty-bitmaps"].as_array().into_iter().flatten();
    bitmaps.cloned().collect()
}

/// The bitmap of a node with this name.
fn bitmap(client: &mut Client, node: &str, name: &str) -> Value {
    let mut bitmaps = bitmaps(client, node).into_iter();
    bitmaps.find(|bitmap| bitmap["name"] == name).unwrap()
}
