//! Guests that write without pause while their disk is mirrored: they go over to the target, or the target is a copy as of one moment;
//! no write is lost.

use serde_json::{Value, json};
use test_support::deadline::Deadline;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::client::Client;
use crate::control::job;
use crate::ends::assert_holds_all_writes;
use crate::load::{Load, QUEUES, assert_is_of_one_moment};
use crate::mirror::mirror;
use crate::process::{Folder, Process};
use crate::{MIB, completed, start};

const BYTES: u64 = 8 * MIB;

/// Another daemon, which serves an empty disk.
struct NbdTarget {
    process: Process,
    socket: String,
}

impl NbdTarget {
    /// With an image of so many bytes in a folder of its own.
    fn start(bytes: u64) -> (Self, Folder) {
        let folder = Folder::new();
        folder.image("there.img", bytes);
        // Its monitor answers when the export is there.
        let (process, _) = start(
            &folder,
            "--blockdev file,node-name=there,filename=there.img,cache.direct=off \
             --nbd-server addr.type=unix,addr.path=nbd --export nbd,id=x,node-name=there,writable=on",
        );
        let socket = folder.join("nbd").display().to_string();
        (NbdTarget { process, socket }, folder)
    }

    /// Arguments of `blockdev-add`.
    fn node(&self, name: &str) -> Value {
        let server = json!({"type": "unix", "path": self.socket});
        json!({"driver": "nbd", "node-name": name, "server": server, "export": "there"})
    }
}

/// Two empty disks, of which the first one is exported on two iothreads.
fn started(folder: &Folder) -> (Process, Client, Load) {
    started_with(folder, BYTES)
}

/// The same, with so many bytes.
fn started_with(folder: &Folder, bytes: u64) -> (Process, Client, Load) {
    folder.image("disk.img", bytes);
    folder.image("copy.img", bytes);
    let (program, client) = start(
        folder,
        &format!(
            "--object iothread,id=io0 --object iothread,id=io1 \
             --blockdev file,node-name=disk,filename=disk.img,cache.direct=off \
             --blockdev file,node-name=copy,filename=copy.img,cache.direct=off \
             --export vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={QUEUES},\
iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
        ),
    );
    let load = Load::begin(folder.join("e.sock"), Device::Blk, bytes / BLOCK as u64);
    load.goes_on(100);
    (program, client, load)
}

/// Has the guest go over from the first node to the second one and back, so many times, and ends at the second.
fn go_over(client: &mut Client, load: &Load, mut names: [&'static str; 2], rounds: usize) {
    assert_eq!(rounds % 2, 1);
    for round in 0..rounds {
        let mode = ["background", "write-blocking"][round % 2];
        let disks = json!({"device": names[0], "target": names[1], "copy-mode": mode});
        client.done("blockdev-mirror", mirror(disks));
        client.wait_for_event("BLOCK_JOB_READY");
        load.goes_on(50);
        client.done("job-complete", json!({"id": "j"}));
        let data = completed(client);
        assert!(data.get("error").is_none(), "{data}");
        names.swap(0, 1);
        load.goes_on(50);
    }
    let exports = client.done("query-block-exports", json!({}));
    assert_eq!(exports[0]["node-name"], names[0]);
    client.done("blockdev-del", json!({"node-name": names[1]}));
}

#[test]
fn guest_that_writes_goes_over_to_the_target_and_back() {
    let folder = Folder::new();
    let (program, mut client, load) = started(&folder);
    go_over(&mut client, &load, ["disk", "copy"], 51);
    let writes = load.end();
    assert_holds_all_writes(&folder, "copy.img", &writes);
    program.stop();
}

#[test]
fn guest_that_writes_goes_over_to_an_nbd_server_and_back() {
    let folder = Folder::new();
    let (program, mut client, load) = started(&folder);
    let (server, remote) = NbdTarget::start(BYTES);
    client.done("blockdev-add", server.node("remote"));
    go_over(&mut client, &load, ["disk", "remote"], 51);
    let writes = load.end();
    program.stop();
    server.process.stop();
    assert_holds_all_writes(&remote, "there.img", &writes);
}

#[test]
fn writes_to_holes_while_the_disk_is_mirrored_are_in_the_target() {
    for mode in ["background", "write-blocking"] {
        let folder = Folder::new();
        let (program, mut client, load) = started_with(&folder, 200 * MIB);
        let arguments = json!({"copy-mode": mode, "speed": 80 * MIB});
        client.done("blockdev-mirror", mirror(arguments));
        let deadline = Deadline::default();
        while job(&mut client)["offset"].as_u64().unwrap() < 200 * MIB {
            deadline.check("as much is copied as the disk has");
        }
        let writes = load.end();
        client.done("block-job-set-speed", json!({"device": "j", "speed": 0}));
        client.wait_for_event("BLOCK_JOB_READY");
        client.done("job-complete", json!({"id": "j"}));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        assert_holds_all_writes(&folder, "copy.img", &writes);
        program.stop();
    }
}

#[test]
fn mirror_that_ends_without_a_switch_over_is_a_copy_of_one_moment() {
    for mode in ["background", "write-blocking"] {
        let folder = Folder::new();
        let (program, mut client, load) = started(&folder);
        client.done("blockdev-mirror", mirror(json!({"copy-mode": mode})));
        client.wait_for_event("BLOCK_JOB_READY");
        load.goes_on(200);
        let after = load.now();
        client.done("block-job-cancel", json!({"device": "j"}));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        let before = load.now();
        load.goes_on(200);
        let writes = load.end();
        let content = std::fs::read(folder.join("copy.img")).unwrap();
        assert_is_of_one_moment(&content, &writes, after, before);
        assert_holds_all_writes(&folder, "disk.img", &writes);
        program.stop();
    }
}

#[test]
fn mirrors_of_a_busy_disk_are_cancelled_at_any_time() {
    let folder = Folder::new();
    let (program, mut client, load) = started(&folder);
    let (mut names, mut switched) = (["disk", "copy"], 0);
    for round in 0..30u64 {
        let mode = ["background", "write-blocking"][usize::try_from(round % 2).unwrap()];
        let disks = json!({"device": names[0], "target": names[1], "copy-mode": mode});
        client.done("blockdev-mirror", mirror(disks));
        if round % 3 > 0 {
            client.wait_for_event("BLOCK_JOB_READY");
            client.done("job-complete", json!({"id": "j"}));
        }
        std::thread::sleep(std::time::Duration::from_micros(round * round * 100));
        // It may have ended.
        client.ask("job-cancel", json!({"id": "j"}));
        let event = client.wait_for_event_of(&["BLOCK_JOB_CANCELLED", "BLOCK_JOB_COMPLETED"]);
        assert!(event["data"].get("error").is_none(), "{event}");
        if event["event"] == "BLOCK_JOB_COMPLETED" {
            names.swap(0, 1);
            switched += 1;
        }
        let exports = client.done("query-block-exports", json!({}));
        assert_eq!(exports[0]["node-name"], names[0]);
    }
    assert!(switched < 30, "some were cancelled");
    load.goes_on(100);
    let writes = load.end();
    assert_holds_all_writes(&folder, &format!("{}.img", names[0]), &writes);
    program.stop();
}
