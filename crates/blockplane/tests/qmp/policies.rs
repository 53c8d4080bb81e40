//! Requests that a disk fails are reported, ignored, or wait until an operator has put it right; and those that it does
//! not answer.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually, eventually_ok};

use crate::client::Client;
use crate::guest::{BLOCK, FLUSH, Guest, IN, OUT, SLOTS};
use crate::process::{Folder, Process};
use crate::start;

const MIB: u64 = 1 << 20;

/// What a request that failed has for its status.
const IO_ERROR: u8 = 1;

struct Disk {
    program: Process,
    client: Client,
    guest: Guest,
    socket: PathBuf,
}

/// A disk with faults, and a policy.
fn disk(folder: &Folder, policy: &str) -> Disk {
    folder.image("disk", MIB);
    let line = format!(
        "--blockdev file,node-name=d,filename=disk --blockdev blkdebug,node-name=b,image=d \
         --export vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2,{policy}"
    );
    let (mut program, client) = start(folder, &line);
    let socket = folder.join("e.sock");
    program.wait_until_accepting(&socket);
    let guest = Guest::connect(&socket, 2);
    Disk {
        program,
        client,
        guest,
        socket,
    }
}

impl Disk {
    fn inject(&mut self, rules: Value) {
        let arguments = json!({"node-name": "b", "inject-error": rules});
        self.client.done("x-blkdebug-set", arguments);
    }

    fn fail_writes(&mut self, errno: u32) {
        self.inject(json!([{"iotype": "write", "errno": errno}]));
    }

    fn resume(&mut self) {
        let arguments = json!({"id": "e"});
        self.client.done("block-export-resume", arguments);
    }

    /// Waits until so many requests wait.
    #[track_caller]
    fn expect_parked(&mut self, requests: u64, status: &str) {
        expect_parked(&mut self.client, requests, status);
    }

    fn status(&mut self, slot: usize) -> u8 {
        self.guest.watch(0, slot);
        self.guest.status(0, slot)
    }
}

/// Waits until so many requests are parked, and asserts the I/O status of the export.
#[track_caller]
fn expect_parked(client: &mut Client, requests: u64, status: &str) {
    eventually_ok(format_args!("{requests} requests wait"), || {
        let export = client.done("query-block-exports", json!({}))[0].take();
        if export["waiting-requests"] != requests {
            return Err(export);
        }
        assert_eq!(export["io-status"], status);
        Ok(())
    });
}

#[test]
fn stop_policy_parks_a_failed_request_only() {
    let folder = Folder::new();
    let mut disk = disk(&folder, "rerror=stop,werror=stop");
    disk.fail_writes(5);
    disk.guest.ask(0, 0, OUT, 1, 7);
    let event = disk.client.wait_for_event("BLOCK_IO_ERROR");
    let event = [
        "node-name",
        "export",
        "operation",
        "action",
        "nospace",
        "reason",
    ]
    .map(|key| event[key].clone());
    let expected = json!(["b", "e", "write", "stop", false, "Input/output error"]);
    assert_eq!(json!(event), expected);
    disk.expect_parked(1, "failed");
    // A flush is about what was answered.
    for kind in [IN, FLUSH] {
        disk.guest.ask(0, 1, kind, 1, 0);
        assert_eq!(disk.status(1), 0);
    }
    // While the disk is not fixed it is parked again.
    disk.resume();
    disk.expect_parked(1, "failed");
    assert!(!disk.guest.is_answered(0, 0));
    disk.inject(json!([]));
    disk.resume();
    assert_eq!(disk.status(0), 0);
    disk.expect_parked(0, "ok");
    disk.guest.request(0, IN, 1, 0);
    assert_eq!(disk.guest.data(0, 0), [7; BLOCK]);
    // Whatever it was.
    disk.inject(json!([{}]));
    for (slot, kind) in [IN, OUT, FLUSH].into_iter().enumerate() {
        disk.guest.ask(0, slot, kind, slot as u64 + 1, 8);
    }
    disk.expect_parked(3, "failed");
    disk.inject(json!([]));
    disk.resume();
    for slot in 0..3 {
        assert_eq!(disk.status(slot), 0);
    }
    assert_eq!(disk.guest.data(0, 0), [7; BLOCK]);
    disk.guest.request(0, IN, 2, 0);
    assert_eq!(disk.guest.data(0, 0), [8; BLOCK]);
    // Who has waited enough can give up.
    disk.fail_writes(5);
    disk.guest.ask(0, 0, OUT, 1, 9);
    disk.expect_parked(1, "failed");
    let report = json!({"id": "e", "action": "report"});
    disk.client.done("block-export-resume", report);
    assert_eq!(disk.status(0), IO_ERROR);
    disk.expect_parked(0, "ok");
    let text = disk
        .client
        .fails("block-export-resume", json!({"id": "nope"}));
    assert_eq!(text, "Export 'nope' is not found");
    disk.program.stop();
}

#[test]
fn each_policy_applies_to_its_errors() {
    const EIO: u32 = 5;
    const ENOSPC: u32 = 28;
    for (policy, errno, expected) in [
        ("", EIO, Some(IO_ERROR)),
        ("", ENOSPC, Some(IO_ERROR)),
        ("werror=enospc", EIO, Some(IO_ERROR)),
        ("werror=enospc", ENOSPC, None),
        ("rerror=stop", EIO, Some(IO_ERROR)),
        ("werror=ignore", EIO, Some(0)),
    ] {
        let folder = Folder::new();
        let mut disk = disk(&folder, policy);
        disk.fail_writes(errno);
        disk.guest.ask(0, 0, OUT, 1, 7);
        match expected {
            Some(status) => assert_eq!(disk.status(0), status, "{policy} {errno}"),
            None => disk.expect_parked(1, "nospace"),
        }
        drop(disk.guest);
        disk.program.stop();
    }
}

#[test]
fn stopping_queue_returns_the_last_parked_request_to_the_ring() {
    let folder = Folder::new();
    let mut disk = disk(&folder, "werror=stop");
    disk.guest.request(0, IN, 0, 0);
    disk.fail_writes(28);
    for slot in 0..3 {
        disk.guest.ask(0, slot, OUT, slot as u64, 7);
    }
    disk.expect_parked(3, "nospace");
    let base = disk.guest.stop(0);
    assert_eq!(base, 1, "as if they had not been taken");
    disk.expect_parked(0, "ok");
    disk.inject(json!([]));
    disk.guest.start(0, base);
    for slot in 0..3 {
        assert_eq!(disk.status(slot), 0);
        disk.guest.request(1, IN, slot as u64, 0);
        assert_eq!(disk.guest.data(1, 0), [7; BLOCK]);
    }
    // The ring cannot say that an earlier one is not done: its guest is event of the error.
    disk.fail_writes(28);
    disk.guest.ask(0, 0, OUT, 0, 8);
    disk.expect_parked(1, "nospace");
    disk.guest.ask(0, 1, IN, 0, 0);
    assert_eq!(disk.status(1), 0);
    assert_eq!(disk.guest.stop(0), 6);
    assert_eq!(disk.status(0), IO_ERROR);
    disk.expect_parked(0, "ok");
    // A guest that goes, and the program's end, wait for none of it.
    disk.guest.start(0, 6);
    disk.guest.ask(0, 0, OUT, 0, 8);
    disk.expect_parked(1, "nospace");
    drop(disk.guest);
    expect_parked(&mut disk.client, 0, "ok");
    let mut guest = Guest::connect(&disk.socket, 2);
    guest.request(1, IN, 0, 0);
    guest.ask(0, 0, OUT, 0, 8);
    expect_parked(&mut disk.client, 1, "nospace");
    disk.program.stop();
}

#[test]
fn disk_is_exchanged_and_shrunk_while_requests_are_parked() {
    let folder = Folder::new();
    let mut disk = disk(&folder, "werror=stop");
    disk.fail_writes(5);
    let last = MIB / BLOCK as u64 - 1;
    for (slot, block) in [1, last].into_iter().enumerate() {
        disk.guest.ask(0, slot, OUT, block, 7);
    }
    disk.expect_parked(2, "failed");
    let options = json!([
        {"driver": "file", "node-name": "d", "filename": "disk", "aio": "threads"},
        {"driver": "blkdebug", "node-name": "b", "image": "d"},
    ]);
    disk.client
        .done("blockdev-reopen", json!({"options": options}));
    disk.client
        .done("block_resize", json!({"node-name": "d", "size": MIB / 2}));
    disk.expect_parked(2, "failed");
    disk.resume();
    assert_eq!(disk.status(0), 0);
    assert_eq!(disk.status(1), IO_ERROR, "there is no disk any more");
    let image = std::fs::read(folder.join("disk")).unwrap();
    assert_eq!(image.len() as u64, MIB / 2);
    assert_eq!(image[BLOCK..2 * BLOCK], [7; BLOCK]);
    disk.program.stop();
}

/// Errors by chance: each arrives at the request that it is of, and what is on the disk is what was said.
#[test]
fn random_errors_reach_the_failed_requests_only() {
    let folder = Folder::new();
    let mut disk = disk(&folder, "");
    let mut model = [[0; BLOCK]; SLOTS];
    disk.client.done(
        "x-blkdebug-set",
        json!({"node-name": "b", "seed": 3, "inject-error": [
            {"one-in": 7, "action": "delay", "delay-ns": 100_000},
            {"one-in": 4},
        ]}),
    );
    let mut failed = 0;
    for round in 1..200_u8 {
        for slot in 0..SLOTS {
            let kind = if (usize::from(round) + slot).is_multiple_of(3) {
                IN
            } else {
                OUT
            };
            disk.guest.add(0, slot, kind, slot as u64, round);
        }
        disk.guest.submit(0);
        for (slot, block) in model.iter_mut().enumerate() {
            let reads = (usize::from(round) + slot).is_multiple_of(3);
            match (disk.status(slot), reads) {
                (0, true) => assert_eq!(disk.guest.data(0, slot), *block),
                (0, false) => *block = [round; BLOCK],
                (status, _) => {
                    assert_eq!(status, IO_ERROR);
                    failed += 1;
                }
            }
        }
    }
    assert!((200..600).contains(&failed), "{failed} of 1592");
    disk.program.stop();
}

/// A small file system in memory.
struct Small(PathBuf);

impl Small {
    /// `None`: it cannot be had, which was said.
    fn mounted(folder: &Folder, kib: u64) -> Option<Self> {
        let place = folder.join("small");
        std::fs::create_dir(&place).unwrap();
        let size = format!("size={kib}k");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&place)
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Small(place));
        }
        test_support::report::not_run(
            "a disk that fills up is on a tmpfs, and mounting one needs root",
        );
        None
    }

    fn grow(&self, kib: u64) {
        let size = format!("remount,size={kib}k");
        let grown = Command::new("mount")
            .args(["-o", &size])
            .arg(&self.0)
            .status();
        assert!(grown.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn enospc_policy_hides_a_full_disk_from_the_guest() {
    for aio in ["io_uring", "native", "threads"] {
        let folder = Folder::new();
        let Some(small) = Small::mounted(&folder, 48) else {
            return;
        };
        folder.image("small/disk", MIB);
        let line = format!(
            "--blockdev file,node-name=d,filename=small/disk,aio={aio} \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2,werror=enospc"
        );
        let (mut program, mut client) = start(&folder, &line);
        let socket = folder.join("e.sock");
        program.wait_until_accepting(&socket);
        let mut guest = Guest::connect(&socket, 2);
        // Neighbours, which go to the disk together, and of which some have room: 16 of 12 blocks.
        for queue in [0, 1] {
            for slot in 0..SLOTS {
                let block = slot as u64 + u64::from(queue) * SLOTS as u64;
                guest.add(queue, slot, OUT, block, u8::try_from(block + 1).unwrap());
            }
            guest.submit(queue);
        }
        let event = client.wait_for_event("BLOCK_IO_ERROR");
        assert_eq!(
            (&event["action"], &event["nospace"]),
            (&json!("stop"), &json!(true))
        );
        // A little more is not enough for all.
        small.grow(52);
        client.done("block-export-resume", json!({"id": "e"}));
        small.grow(1024);
        let asked = [0, 1].map(|queue| (0..SLOTS).map(move |slot| (queue, slot)));
        let asked: Vec<_> = asked.into_iter().flatten().collect();
        eventually(format_args!("{aio}: all requests are answered"), || {
            let mut all = asked.iter();
            let done = all.all(|(queue, slot)| guest.is_answered(*queue, *slot));
            if !done {
                // What fails while the other is resumed needs it once more.
                client.done("block-export-resume", json!({"id": "e"}));
            }
            done
        });
        for (queue, slot) in asked {
            assert_eq!(guest.status(queue, slot), 0, "{aio}");
        }
        expect_parked(&mut client, 0, "ok");
        program.stop();
        let image = std::fs::read(folder.join("small/disk")).unwrap();
        for (at, block) in image.chunks(BLOCK).take(2 * SLOTS).enumerate() {
            let byte = u8::try_from(at + 1).unwrap();
            assert!(
                block.iter().all(|found| *found == byte),
                "{aio}: block {at}"
            );
        }
        assert!(image[2 * SLOTS * BLOCK..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn late_requests_are_reported_once() {
    let folder = Folder::new();
    let mut disk = disk(&folder, "request-timeout=1");
    disk.inject(json!([{"iotype": "read", "sector": 8, "action": "hang"}]));
    for (queue, slot) in [(0, 0), (0, 1), (1, 0)] {
        disk.guest.ask(queue, slot, IN, 1, 0);
    }
    let (mut late, deadline) = (0, Deadline::default());
    while late < 3 {
        deadline.check(format_args!("3 late requests are reported, not {late}"));
        let event = disk.client.wait_for_event("BLOCK_EXPORT_REQUESTS_LATE");
        assert_eq!(event["id"], "e");
        assert!(event["seconds"].as_u64() >= Some(1));
        late += event["requests"].as_u64().unwrap();
    }
    assert_eq!(late, 3);
    let exports = disk.client.done("query-block-exports", json!({}));
    assert_eq!(exports[0]["late-requests"], 3);
    // Nothing was done about them.
    assert!(!disk.guest.is_answered(0, 0));
    disk.inject(json!([]));
    disk.guest.wait(0, 0);
    let log = disk.program.stop().stderr;
    assert!(log.contains("request-timeout"), "{log}");
}
