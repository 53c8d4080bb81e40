//! A transaction copies several disks as of the same moment.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, OUT, RequestDriver};
use crate::{MIB, assert_no_jobs, copy, merged, start, start_with_disks, succeeded};

const BLOCKS: u64 = 2048;

/// Two disks, each behind an export on an iothread, and a target for each. Their files have this content.
fn started(content: &[u8]) -> (Folder, Process, Client) {
    let folder = Folder::new();
    let disk = |name: &str| {
        for file in [name.to_owned(), format!("to-{name}")] {
            std::fs::write(folder.join(&format!("{file}.img")), content).unwrap();
        }
        format!(
            "--object iothread,id=io-{name} \
             --blockdev file,node-name={name},filename={name}.img,cache.direct=off \
             --blockdev file,node-name=to-{name},filename=to-{name}.img,cache.direct=off \
             --export vhost-user-blk,id=e-{name},node-name={name},writable=on,iothread=io-{name},\
addr.type=unix,addr.path={name}.sock "
        )
    };
    let line = disk("a") + &disk("b");
    let (program, client) = start(&folder, &line);
    (folder, program, client)
}

fn action(disk: &str, others: Value) -> Value {
    let of_disk = json!({"job-id": disk, "device": disk, "target": format!("to-{disk}")});
    json!({"type": "blockdev-backup", "data": copy("full", merged(of_disk, others))})
}

/// Blocks that were written, from the first one on.
fn written_blocks(folder: &Folder, name: &str) -> usize {
    let content = std::fs::read(folder.join(name)).unwrap();
    let written: Vec<bool> = content.chunks(BLOCK).map(|block| block[0] != 0).collect();
    let count = written.iter().filter(|written| **written).count();
    assert!(written[..count].iter().all(|written| *written), "no prefix");
    for block in content.chunks(BLOCK) {
        assert!(block.iter().all(|byte| *byte == block[0]), "torn");
    }
    count
}

/// A guest writes a block of one disk, and then the same block of the other one.
#[test]
fn disks_that_are_backed_up_together_are_of_one_moment() {
    for round in 0..4u64 {
        let (folder, program, mut client) = started(&vec![0; 2048 * BLOCK]);
        let [mut a, mut b] =
            ["a.sock", "b.sock"].map(|socket| RequestDriver::connect(&folder.join(socket), 1));
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for block in 0..BLOCKS {
                    a.request(0, OUT, block, 1);
                    b.request(0, OUT, block, 2);
                    begun.store(block > 100 + 150 * round, Ordering::SeqCst);
                }
            });
            eventually("some writes", || begun.load(Ordering::SeqCst));
            let actions = json!([action("a", json!({})), action("b", json!({}))]);
            client.done("transaction", json!({"actions": actions}));
            for _ in 0..2 {
                let data = client.wait_for_event("BLOCK_JOB_COMPLETED");
                assert!(data.get("error").is_none(), "{data}");
            }
        });
        let [in_a, in_b] = ["to-a.img", "to-b.img"].map(|name| written_blocks(&folder, name));
        assert!(in_a > 100, "{in_a}");
        assert!(in_a == in_b || in_a == in_b + 1, "{in_a} and {in_b}");
        program.stop();
    }
}

/// One of two jobs cannot write.
#[test]
fn jobs_that_are_grouped_fail_together() {
    let (_folder, program, mut client) = started(&vec![1; 1 << 20]);
    let rule = json!([{"iotype": "write", "errno": 5}]);
    let filter =
        json!({"driver": "blkdebug", "node-name": "bad", "image": "to-b", "inject-error": rule});
    client.done("blockdev-add", filter);
    for (mode, end_of_other) in [
        ("individual", "BLOCK_JOB_COMPLETED"),
        ("grouped", "BLOCK_JOB_CANCELLED"),
    ] {
        let actions = [
            action("a", json!({})),
            action("b", json!({"target": "bad"})),
        ];
        let properties = json!({"completion-mode": mode});
        let transaction = json!({"actions": actions, "properties": properties});
        client.done("transaction", transaction);
        let mut ends = [(); 2].map(|()| {
            let event = client.wait_for_event_of(&["BLOCK_JOB_COMPLETED", "BLOCK_JOB_CANCELLED"]);
            let data = &event["data"];
            [&data["device"], &event["event"], &data["error"]].map(Value::clone)
        });
        ends.sort_by_key(|end| end[0].to_string());
        let of_a = [json!("a"), json!(end_of_other), Value::Null];
        let of_b = ["b", "BLOCK_JOB_COMPLETED", "Input/output error"].map(Value::from);
        assert_eq!(ends, [of_a, of_b], "{mode}");
    }
    assert_no_jobs(&mut client);
    program.stop();
}

/// Routes of a job to its target are not exchanged while it runs.
#[test]
fn bitmap_of_a_target_records_all_of_the_backup_or_is_refused() {
    let (folder, program, mut client) = started(&vec![1; 1 << 20]);
    client.execute("blockdev-add driver=raw node-name=window file=to-a");
    let mut guest = RequestDriver::connect(&folder.join("a.sock"), 1);
    let bitmap = |name: &str| json!({"node": "to-a", "name": name});
    let action_of = |kind: &str| json!({"type": kind, "data": bitmap("b")});
    let add = action_of("block-dirty-bitmap-add");
    let enable = action_of("block-dirty-bitmap-enable");
    for (change, target) in [(&add, "to-a"), (&add, "window"), (&enable, "to-a")] {
        let backup = action("a", json!({"target": target, "sync": "none"}));
        for actions in [[change, &backup], [&backup, change]] {
            let said = client.fails("transaction", json!({"actions": actions}));
            let expected = "Node 'to-a' is busy: backup 'a' begins";
            assert!(said.contains(expected), "{said}");
        }
        let disabled = json!({"node": "to-a", "name": "b", "disabled": true});
        client.ask("block-dirty-bitmap-add", disabled);
    }
    client.done("block-dirty-bitmap-enable", bitmap("b"));
    let backup = action("a", json!({"target": "window", "sync": "none"}));
    let other = json!({"type": "block-dirty-bitmap-add", "data": bitmap("other")});
    client.done("transaction", json!({"actions": [other, backup]}));
    guest.request(0, OUT, 20, 1);
    for name in ["b", "other"] {
        let count = crate::bitmap(&mut client, "to-a", name)["count"].take();
        assert_eq!(count, 65536, "{name}");
    }
    client.execute("job-cancel id=a");
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    program.stop();
}

#[test]
fn transaction_that_fails_starts_no_job_and_adds_no_bitmap() {
    let (_folder, program, mut client) = started(&vec![0; 1 << 20]);
    let add = json!({"type": "block-dirty-bitmap-add", "data": {"node": "a", "name": "b"}});
    let bad = json!({"type": "block-dirty-bitmap-remove", "data": {"node": "a", "name": "x"}});
    let abort = json!({"type": "abort", "data": {}});
    let same_id = action("b", json!({"job-id": "a"}));
    let without_bitmap = action("b", json!({"sync": "bitmap"}));
    for (last, error) in [
        (bad, "Dirty bitmap 'x' not found"),
        (abort, "Transaction aborted using Abort action"),
        (action("b", json!({"target": "to-a"})), "is busy"),
        (same_id, "Job ID 'a' already in use"),
        (without_bitmap, "must provide a valid bitmap name"),
    ] {
        let actions = json!({"actions": [add, action("a", json!({})), last]});
        let said = client.fails("transaction", actions);
        assert!(said.contains(error), "{said}");
        assert_no_jobs(&mut client);
        let nodes = client.execute("query-named-block-nodes");
        assert!(!nodes.to_string().contains("dirty-bitmaps"), "{nodes}");
    }
    let grouped = json!({"actions": [add], "properties": {"completion-mode": "grouped"}});
    let said = client.fails("transaction", grouped);
    let expected = "does not support transaction property";
    assert!(said.contains(expected), "{said}");
    // It is not reserved, and no filter keeps the target, or its lock.
    client.execute("blockdev-del node-name=to-a");
    client.execute("blockdev-add driver=file node-name=to-a filename=to-a.img cache.direct=false");
    let actions = json!({"actions": [add, action("a", json!({}))]});
    client.done("transaction", actions);
    client.wait_for_event("BLOCK_JOB_COMPLETED");
    program.stop();
}

/// The process may write files of a few bytes only.
#[test]
fn transaction_changes_nothing_if_bitmaps_cannot_be_saved() {
    let folder = Folder::new();
    folder.image("kept.img", MIB);
    let kept =
        "--blockdev file,node-name=kept,filename=kept.img,bitmap-file=bitmaps,cache.direct=off";
    let (program, mut client) = start_with_disks(&folder, MIB, kept);
    program.limit_file_size(Some(16));
    let add = |node, persistent| {
        let data = json!({"node": node, "name": "b", "persistent": persistent});
        json!({"type": "block-dirty-bitmap-add", "data": data})
    };
    let job = json!({"type": "blockdev-backup", "data": copy("full", json!({}))});
    let actions = json!({"actions": [add("disk", false), job, add("kept", true)]});
    let said = client.fails("transaction", actions.clone());
    assert!(said.contains("bitmap-file: cannot write"), "{said}");
    let count = |client: &mut Client| {
        let nodes = client.execute("query-named-block-nodes");
        nodes.to_string().matches("granularity").count()
    };
    assert_eq!(count(&mut client), 0);
    assert_no_jobs(&mut client);
    program.limit_file_size(None);
    client.done("transaction", actions);
    assert_eq!(count(&mut client), 2);
    succeeded(&mut client);
    program.stop();
}
