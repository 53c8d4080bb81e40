//! Jobs of the real program: copies of disks as of one moment, while front-ends write.
//!
//! - `moment`: full and incremental backups are what the disk was at their moment, whatever is written meanwhile; also across live
//!   upgrades and the death of the daemon.
//! - `several_disks`: a transaction copies several disks as of the same moment.
//! - `bitmaps`: what is clean after a job that succeeds, fails or is cancelled.
//! - `errors`: disks that fail or are full, and their policies.
//! - `control`: commands and events, as qemu-storage-daemon has them; what is refused meanwhile.
//! - `create`: images that `blockdev-create` makes.
//! - `mirror`, `switch_over`: mirrors, their commands and errors; guests that go over to another disk while they write.
//! - `ends`: jobs that are cancelled, or end with the daemon; live upgrades.
//! - `clones`: disks in files that share extents.
//! - `commands`: `blockplane backup`, `mirror` and `bitmap`.
//! - `first_run`: first runs of `blockplane backup --incremental` that do not end.
//! - `nbd_target`: targets that are exports of NBD servers, which fail, or are started again.
//! - `own_exports`: targets that are exports of the daemon itself.
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
mod mirror;
mod moment;
mod nbd_target;
mod own_exports;
mod pace;
mod several_disks;
mod switch_over;
mod waits;

use client::Client;
use process::{Folder, Process};
use request_driver::RequestDriver;
use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::{process, qmp as client, request_driver};

const MONITOR: &str = "--chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c";
/// A writable export of the node `disk`.
const EXPORT: &str =
    "--export vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path=e.sock";
const MIB: u64 = 1 << 20;
/// Modes of a mirror.
const MODES: [&str; 2] = ["background", "write-blocking"];

/// The program with a monitor and these options besides, and a client of it.
fn start(folder: &Folder, line: &str) -> (Process, Client) {
    let mut program = Process::spawn(folder.command(process::words(&format!("{line} {MONITOR}"))));
    let client = Client::of(program.connection(&folder.join("qmp")));
    (program, client)
}

/// Bytes that are not zero and differ between sectors.
fn content(bytes: u64) -> Vec<u8> {
    let byte = |at| u8::try_from(at / 512 % 251 + 1).unwrap();
    (0..bytes).map(byte).collect()
}

/// A file of these bytes, which are not zero, and another one, both opened.
fn start_with_disks(folder: &Folder, bytes: u64, further: &str) -> (Process, Client) {
    std::fs::write(folder.join("disk.img"), content(bytes)).unwrap();
    folder.image("copy.img", bytes);
    start(
        folder,
        &format!(
            "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off \
             --blockdev file,node-name=copy,filename=copy.img,cache.direct=off {further}"
        ),
    )
}

/// The same, with a guest. An export of a node is among these options, or else of the first file.
fn start_with_guest(
    folder: &Folder,
    bytes: u64,
    further: &str,
) -> (Process, Client, RequestDriver) {
    let export = match further.contains("addr.path=e.sock") {
        true => "",
        false => EXPORT,
    };
    let (program, client) = start_with_disks(folder, bytes, &format!("{further} {export}"));
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    (program, client, guest)
}

/// An object with the members of another one, which replace its own.
fn merged(mut base: Value, others: Value) -> Value {
    for (key, value) in others.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

/// An object has these members, and perhaps others.
#[track_caller]
fn assert_has(found: &Value, members: Value) {
    assert_eq!(merged(found.clone(), members), *found);
}

/// Arguments of a job `j` that copies `disk` to `copy`, and others that replace them.
fn copy(sync: &str, others: Value) -> Value {
    let arguments = json!({"job-id": "j", "device": "disk", "target": "copy", "sync": sync});
    merged(arguments, others)
}

/// Begins a backup of `disk` to `copy` by the job `j`, with other arguments that replace these.
#[track_caller]
fn begin_backup(client: &mut Client, sync: &str, others: Value) {
    client.done("blockdev-backup", copy(sync, others));
}

/// Begins such a mirror.
#[track_caller]
fn begin_mirror(client: &mut Client, others: Value) {
    client.done("blockdev-mirror", copy("full", others));
}

/// Waits for the end of the job `j`, and returns its event.
#[track_caller]
fn completed(client: &mut Client) -> Value {
    let data = client.wait_for_event("BLOCK_JOB_COMPLETED");
    assert_eq!(data["device"], "j");
    data
}

/// The same for a job that succeeds.
#[track_caller]
fn succeeded(client: &mut Client) -> Value {
    let data = completed(client);
    assert!(data.get("error").is_none(), "{data}");
    data
}

/// The same for a job that fails, with its error.
#[track_caller]
fn failed(client: &mut Client) -> String {
    let data = completed(client);
    let error = data["error"].as_str();
    error.unwrap_or_else(|| panic!("{data}")).to_owned()
}

/// Lets the guests of a mirror that is ready go over to its target.
#[track_caller]
fn complete(client: &mut Client) {
    client.execute("job-complete id=j");
    succeeded(client);
}

/// Cancels the job `j`.
#[track_caller]
fn cancel(client: &mut Client) -> Value {
    client.execute("job-cancel id=j");
    client.wait_for_event("BLOCK_JOB_CANCELLED")
}

/// The job, as `query-block-jobs` shows it.
fn job(client: &mut Client) -> Value {
    client.execute("query-block-jobs")[0].take()
}

#[track_caller]
fn assert_no_jobs(client: &mut Client) {
    assert_eq!(client.execute("query-jobs"), json!([]));
}

/// Waits until the job has copied so many bytes.
fn await_progress(client: &mut Client, bytes: u64) {
    eventually("something is copied", || {
        client.execute("query-jobs")[0]["current-progress"].as_u64() >= Some(bytes)
    });
}

/// A command is refused, and no job begins. Each line has arguments, a bar, and the beginning of the error.
#[track_caller]
fn assert_refused(
    client: &mut Client,
    command: &str,
    arguments: impl Fn(Value) -> Value,
    lines: &str,
) {
    for line in lines.trim().lines() {
        let (others, error) = line.split_once(" | ").unwrap();
        let others = serde_json::from_str(others).unwrap();
        let said = client.fails(command, arguments(others));
        assert!(said.starts_with(error), "{line}: {said}");
    }
    assert_no_jobs(client);
}

/// Has requests to a node of blkdebug fail.
fn set_faults(client: &mut Client, node: &str, rules: Value) {
    let arguments = json!({"node-name": node, "inject-error": rules});
    client.done("x-blkdebug-set", arguments);
}

/// The node that the export `e` shows.
fn exported_node(client: &mut Client) -> Value {
    client.export("e")["node-name"].take()
}

/// The file has the same content as another one.
#[track_caller]
fn assert_same_content(folder: &Folder, one: &str, two: &str) {
    let [one, two] = [one, two].map(|name| std::fs::read(folder.join(name)).unwrap());
    assert!(one == two);
}

fn add_bitmap(client: &mut Client, node: &str, name: &str) {
    client.execute(&format!("block-dirty-bitmap-add node={node} name={name}"));
}

/// The bitmaps of a node.
fn bitmaps(client: &mut Client, node: &str) -> Vec<Value> {
    let node = client.node(node);
    let bitmaps = node["dirty-bitmaps"].as_array();
    bitmaps.cloned().unwrap_or_default()
}

/// The bitmap of a node with this name.
fn bitmap(client: &mut Client, node: &str, name: &str) -> Value {
    let mut bitmaps = bitmaps(client, node).into_iter();
    bitmaps.find(|bitmap| bitmap["name"] == name).unwrap()
}
