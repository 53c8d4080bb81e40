//! Requests that a disk fails are reported, ignored, or wait until an operator has put it right; and those that it does
//! not answer. Events tell of them, and of broken queues.

use serde_json::json;
use test_support::deadline::{Deadline, eventually, eventually_ok};
use test_support::mounted_folder::MountedFolder;

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::request_driver::{BLOCK, FLUSH, IN, OUT, RequestDriver, SLOTS};
use crate::{MIB, MONITOR, start, start_with_disk};

/// What a request that failed has for its status.
const IO_ERROR: u8 = 1;

struct Disk {
    folder: Folder,
    program: Process,
    client: Client,
    guest: RequestDriver,
}

/// A disk with faults, and a policy.
fn disk(policy: &str) -> Disk {
    let (folder, program, client) = start_with_disk(&format!(
        "--blockdev file,node-name=d,filename=disk --blockdev blkdebug,node-name=b,image=d \
         --export vhost-user-blk,id=e,node-name=b,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2,{policy}"
    ));
    let guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    Disk {
        folder,
        program,
        client,
        guest,
    }
}

impl Disk {
    /// Replaces the rules of its faults, in words.
    fn inject(&mut self, rules: &str) {
        let set = format!("x-blkdebug-set node-name=b {rules}");
        self.client.execute(&set);
    }

    fn fail_writes(&mut self, errno: u32) {
        self.inject(&format!(
            "inject-error.0.iotype=write inject-error.0.errno={errno}"
        ));
    }

    fn resume(&mut self) {
        self.client.execute("block-export-resume id=e");
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
        let export = client.export("e");
        if export["waiting-requests"] != requests {
            return Err(export);
        }
        assert_eq!(export["io-status"], status);
        Ok(())
    });
}

#[test]
fn stop_policy_parks_a_failed_request_only() {
    let mut disk = disk("rerror=stop,werror=stop");
    disk.fail_writes(5);
    disk.guest.ask(0, 0, OUT, 1, 7);
    expect_parked(&mut disk.client, 1, "failed");
    // A flush is about what was answered.
    for kind in [IN, FLUSH] {
        disk.guest.ask(0, 1, kind, 1, 0);
        assert_eq!(disk.status(1), 0);
    }
    // While the disk is not fixed it is parked again.
    disk.resume();
    expect_parked(&mut disk.client, 1, "failed");
    assert!(!disk.guest.is_answered(0, 0));
    disk.inject("inject-error=[]");
    disk.resume();
    assert_eq!(disk.status(0), 0);
    expect_parked(&mut disk.client, 0, "ok");
    assert_eq!(disk.guest.read(0, 1), [7; BLOCK]);
    let text = disk.client.error_of("block-export-resume id=nope");
    assert_eq!(text, "Export 'nope' is not found");
    disk.program.stop();
}

#[test]
fn stopping_queue_returns_the_last_parked_request_to_the_ring() {
    let mut disk = disk("werror=stop");
    disk.guest.request(0, IN, 0, 0);
    disk.fail_writes(28);
    for slot in 0..3 {
        disk.guest.ask(0, slot, OUT, slot as u64, 7);
    }
    expect_parked(&mut disk.client, 3, "nospace");
    let base = disk.guest.stop(0);
    assert_eq!(base, 1, "as if they had not been taken");
    expect_parked(&mut disk.client, 0, "ok");
    disk.inject("inject-error=[]");
    disk.guest.start(0, base);
    for slot in 0..3 {
        assert_eq!(disk.status(slot), 0);
        assert_eq!(disk.guest.read(1, slot as u64), [7; BLOCK]);
    }
    // The ring cannot say that an earlier one is not done: its guest gets the error.
    disk.fail_writes(28);
    disk.guest.ask(0, 0, OUT, 0, 8);
    expect_parked(&mut disk.client, 1, "nospace");
    disk.guest.ask(0, 1, IN, 0, 0);
    assert_eq!(disk.status(1), 0);
    assert_eq!(disk.guest.stop(0), 6);
    assert_eq!(disk.status(0), IO_ERROR);
    expect_parked(&mut disk.client, 0, "ok");
    // A guest that goes, and the program's end, wait for none of it.
    disk.guest.start(0, 6);
    disk.guest.ask(0, 0, OUT, 0, 8);
    expect_parked(&mut disk.client, 1, "nospace");
    drop(disk.guest);
    expect_parked(&mut disk.client, 0, "ok");
    let mut guest = RequestDriver::connect(&disk.folder.join("e.sock"), 2);
    guest.request(1, IN, 0, 0);
    guest.ask(0, 0, OUT, 0, 8);
    expect_parked(&mut disk.client, 1, "nospace");
    disk.program.stop();
}

#[test]
fn disk_is_exchanged_and_shrunk_while_requests_are_parked() {
    let mut disk = disk("werror=stop");
    disk.fail_writes(5);
    let last = MIB / BLOCK as u64 - 1;
    disk.guest.ask_all(0, OUT, [(1, 7), (last, 7)]);
    expect_parked(&mut disk.client, 2, "failed");
    disk.client.reopen(
        "driver=file node-name=d filename=disk aio=threads
         driver=blkdebug node-name=b image=d",
    );
    disk.client.execute("block_resize node-name=d size=524288");
    expect_parked(&mut disk.client, 2, "failed");
    disk.resume();
    assert_eq!(disk.status(0), 0);
    assert_eq!(disk.status(1), IO_ERROR, "there is no disk any more");
    let image = std::fs::read(disk.folder.join("disk")).unwrap();
    assert_eq!(image.len() as u64, MIB / 2);
    assert_eq!(image[BLOCK..2 * BLOCK], [7; BLOCK]);
    disk.program.stop();
}

/// Errors by chance: each arrives at the request that it is of, and what is on the disk is what was said.
#[test]
fn errors_by_chance_reach_the_failed_requests_only() {
    let mut disk = disk("");
    let mut model = [[0; BLOCK]; SLOTS];
    disk.inject(
        "seed=3 inject-error.0.one-in=7 inject-error.0.action=delay inject-error.0.delay-ns=100000 \
         inject-error.1.one-in=4",
    );
    let mut failed = 0;
    for round in 1..200_u8 {
        let reads = |slot: usize| (usize::from(round) + slot).is_multiple_of(3);
        for slot in 0..SLOTS {
            let kind = if reads(slot) { IN } else { OUT };
            disk.guest.add(0, slot, kind, slot as u64, round);
        }
        disk.guest.submit(0);
        for (slot, block) in model.iter_mut().enumerate() {
            match (disk.status(slot), reads(slot)) {
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

#[test]
fn enospc_policy_hides_a_full_disk_from_the_guest() {
    for aio in ["io_uring", "native", "threads"] {
        let folder = Folder::new();
        let Some(small) = MountedFolder::small_tmpfs(48) else {
            return;
        };
        let disk = small.path().join("disk");
        let filename = disk.to_str().unwrap();
        folder.image(filename, MIB);
        let line = format!(
            "--blockdev file,node-name=d,filename={filename},aio={aio} \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on,num-queues=2,werror=enospc"
        );
        let (program, mut client) = start(&folder, &line);
        let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
        // Neighbours, which go to the disk together, and of which some have room: 16 of 12 blocks.
        for queue in [0, 1_u8] {
            let blocks = (queue * 8..).take(SLOTS);
            let blocks = blocks.map(|block| (block.into(), block + 1));
            guest.ask_all(queue.into(), OUT, blocks);
        }
        let event = client.wait_for_event("BLOCK_IO_ERROR");
        assert_eq!(event["action"], "stop");
        // A little more is not enough for all.
        small.resize_tmpfs(52);
        client.execute("block-export-resume id=e");
        small.resize_tmpfs(1024);
        eventually(format_args!("{aio}: all requests are answered"), || {
            // What fails while the other is resumed needs it once more.
            client.execute("block-export-resume id=e");
            [0, 1]
                .iter()
                .all(|queue| (0..SLOTS).all(|slot| guest.is_answered(*queue, slot)))
        });
        for queue in [0, 1] {
            assert_eq!(guest.watch_all(queue), [0; SLOTS], "{aio}");
        }
        expect_parked(&mut client, 0, "ok");
        program.stop();
        let image = std::fs::read(&disk).unwrap();
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
    let mut disk = disk("request-timeout=1");
    disk.inject("inject-error.0.iotype=read inject-error.0.sector=8 inject-error.0.action=hang");
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
    assert_eq!(disk.client.export("e")["late-requests"], 3);
    // Nothing was done about them.
    assert!(!disk.guest.is_answered(0, 0));
    disk.inject("inject-error=[]");
    disk.guest.wait(0, 0);
    let log = disk.program.stop().stderr;
    assert!(log.contains("request-timeout"), "{log}");
}

/// Writes beyond the first MiB of a file fail (POSIX counts blocks of 512 bytes).
const ONE_MIB_PER_FILE: &str = r#"ulimit -f 2048; exec "$0" "$@""#;

#[test]
fn failed_requests_and_broken_queues_emit_events() {
    for aio in ["native", "io_uring", "threads"] {
        let folder = Folder::new();
        folder.image("disk", 4 * MIB);
        let line = format!(
            "{MONITOR} --blockdev file,node-name=d,filename=disk,aio={aio} \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,writable=on,num-queues=2,request-merging=off"
        );
        let command = folder.command_after(ONE_MIB_PER_FILE, words(&line));
        let mut program = Process::spawn(command);
        program.wait_until_accepting(&folder.join("s"));
        let mut client = Client::connect(&folder.join("qmp"));
        let mut guest = RequestDriver::connect(&folder.join("s"), 2);
        // Far more errors than events that may be sent.
        for round in 0..50 {
            guest.ask_all(0, OUT, (512..).map(|block| (block, round)).take(SLOTS));
            assert_eq!(guest.watch_all(0), [1; SLOTS], "{aio}");
        }
        let data = json!({
            "device": "",
            "node-name": "d",
            "export": "e",
            "operation": "write",
            "action": "report",
            "nospace": false,
            "reason": "File too large",
        });
        assert_eq!(client.wait_for_event("BLOCK_IO_ERROR"), data, "{aio}");
        // What is read and written elsewhere succeeds, and is no news.
        guest.request(1, OUT, 0, 7);
        guest.request(1, IN, 0, 0);
        guest.ask_nonsense(1);
        let broken = client.wait_for_event("BLOCK_EXPORT_QUEUE_BROKEN");
        assert_eq!((&broken["id"], &broken["queue"]), (&json!("e"), &json!(1)));
        assert!(!broken["reason"].as_str().unwrap().is_empty());
        drop(guest);
        let log = program.stop().stderr;
        let failed = log.matches("a request to the disk has failed").count();
        // As seldom as the event.
        assert!((1..100).contains(&failed), "{log}");
    }
}
