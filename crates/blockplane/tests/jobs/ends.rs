//! Jobs that are cancelled at any time, or end with the daemon, and live upgrades meanwhile: the guest loses nothing.

use serde_json::json;
use test_support::verifying::blocks::BLOCK;
use test_support::verifying::device::Device;

use crate::load::{Load, QUEUES};
use crate::process::Folder;
use crate::{MIB, backup, bitmap, start_with_disks};

const BYTES: u64 = 8 * MIB;

fn export() -> String {
    format!(
        "--object iothread,id=io0 --object iothread,id=io1 --export vhost-user-blk,id=e,node-name=disk,writable=on,\
num-queues={QUEUES},iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock"
    )
}

/// The disk has the last value of each block. It was not empty, and all blocks were written.
pub fn assert_holds_all_writes(
    folder: &Folder,
    image: &str,
    writes: &[test_support::verifying::blocks::Write],
) {
    let content = std::fs::read(folder.join(image)).unwrap();
    let mut last = std::collections::HashMap::new();
    for write in writes {
        assert!(write.answered.is_some());
        last.insert(write.block, write.value);
    }
    for (block, value) in last {
        let found = &content[block * BLOCK..(block + 1) * BLOCK];
        assert!(
            found == test_support::verifying::blocks::bytes(block, value),
            "block {block}"
        );
    }
}

#[test]
fn jobs_of_a_busy_disk_are_cancelled_at_any_time() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, BYTES, &export());
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let load = Load::begin(folder.join("e.sock"), Device::Blk, BYTES / BLOCK as u64);
    load.goes_on(100);
    let (mut cancelled, mut completed) = (0, 0);
    for round in 0..40u64 {
        let sync = ["full", "incremental", "none"][usize::try_from(round % 3).unwrap()];
        let mut others = json!({"speed": if round % 2 == 0 { 0 } else { MIB }});
        if sync == "incremental" {
            others["bitmap"] = "b".into();
        }
        client.done("blockdev-backup", backup(sync, others));
        std::thread::sleep(std::time::Duration::from_micros(round * round * 20));
        // It may have ended.
        client.ask("job-cancel", json!({"id": "j"}));
        let event = client.wait_for_event_of(&["BLOCK_JOB_CANCELLED", "BLOCK_JOB_COMPLETED"]);
        assert!(event["data"].get("error").is_none(), "{event}");
        match event["event"] == "BLOCK_JOB_CANCELLED" {
            true => cancelled += 1,
            false => completed += 1,
        }
        assert_eq!(client.done("query-jobs", json!({})), json!([]));
        load.goes_on(20);
    }
    assert!(
        cancelled > 0,
        "{cancelled} cancelled, {completed} completed"
    );
    let writes = load.end();
    assert_eq!(program.stop().code, Some(0));
    assert_holds_all_writes(&folder, "disk.img", &writes);
}

#[test]
fn job_ends_with_the_daemon() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, BYTES, &export());
    let load = Load::begin(folder.join("e.sock"), Device::Blk, BYTES / BLOCK as u64);
    load.goes_on(100);
    client.done("blockdev-backup", backup("full", json!({"speed": MIB})));
    load.goes_on(100);
    let writes = load.end();
    let ended = program.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    assert_holds_all_writes(&folder, "disk.img", &writes);
}

#[test]
fn upgrade_is_refused_while_there_is_a_job() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, &export());
    client.done(
        "block-dirty-bitmap-add",
        json!({"node": "disk", "name": "b"}),
    );
    let others = json!({"speed": 1, "auto-dismiss": false});
    client.done("blockdev-backup", backup("full", others));
    let said = client.fails("upgrade", json!({}));
    assert!(
        said.contains("job 'j' is running") && said.contains("job-cancel"),
        "{said}"
    );
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    let said = client.fails("upgrade", json!({}));
    assert!(said.contains("job-dismiss"), "{said}");
    client.done("job-dismiss", json!({"id": "j"}));
    client.done("upgrade", json!({}));
    let mut client = crate::Client::connect(&folder.join("qmp"));
    assert_eq!(bitmap(&mut client, "disk", "b")["recording"], true);
    client.done("quit", json!({}));
    program.ended();
}
