//! Jobs that are cancelled at any time, or end with the daemon, and live upgrades meanwhile: the guest loses nothing.

use serde_json::json;
use test_support::verifying::blocks::{BLOCK, Write, bytes};
use test_support::verifying::device::Device;
use test_support::verifying::recording_writer::{BUSY_EXPORT, RecordingWriter};

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::{
    EXPORT, MIB, MODES, add_bitmap, assert_no_jobs, begin_backup, bitmap, cancel, copy,
    start_with_disks,
};

const BYTES: u64 = 8 * MIB;

/// A guest that writes without a pause.
fn start_busy(folder: &Folder) -> (Process, Client, RecordingWriter) {
    let (program, client) = start_with_disks(folder, BYTES, BUSY_EXPORT);
    let load = RecordingWriter::start(folder, Device::Blk, BYTES);
    load.wait_for_progress(100);
    (program, client, load)
}

/// The disk has the last value of each block that was written.
pub fn assert_holds_all_writes(folder: &Folder, image: &str, writes: &[Write]) {
    let content = std::fs::read(folder.join(image)).unwrap();
    let mut last = std::collections::HashMap::new();
    for write in writes {
        assert!(write.answered.is_some());
        last.insert(write.block, write.value);
    }
    for (block, value) in last {
        let found = &content[block * BLOCK..(block + 1) * BLOCK];
        assert!(found == bytes(block, value), "block {block}");
    }
}

#[test]
fn jobs_of_a_busy_disk_are_cancelled_at_any_time() {
    let folder = Folder::new();
    let (program, mut client, load) = start_busy(&folder);
    add_bitmap(&mut client, "disk", "b");
    let mut cancelled = 0;
    for round in 0..40u64 {
        let sync = ["full", "incremental", "none"][usize::try_from(round % 3).unwrap()];
        let mut others = json!({"speed": if round % 2 == 0 { 0 } else { MIB }});
        if sync == "incremental" {
            others["bitmap"] = "b".into();
        }
        begin_backup(&mut client, sync, others);
        std::thread::sleep(std::time::Duration::from_micros(round * round * 20));
        // It may have ended.
        client.ask("job-cancel", json!({"id": "j"}));
        let event = client.wait_for_event_of(&["BLOCK_JOB_CANCELLED", "BLOCK_JOB_COMPLETED"]);
        assert!(event["data"].get("error").is_none(), "{event}");
        cancelled += u32::from(event["event"] == "BLOCK_JOB_CANCELLED");
        assert_no_jobs(&mut client);
        load.wait_for_progress(20);
    }
    assert!(cancelled > 0);
    let writes = load.stop();
    program.stop();
    assert_holds_all_writes(&folder, "disk.img", &writes);
}

#[test]
fn job_ends_with_the_daemon() {
    let backup = ("blockdev-backup", json!({"speed": MIB}));
    let mirrors = MODES.map(|mode| ("blockdev-mirror", json!({"speed": MIB, "copy-mode": mode})));
    for (command, others) in std::iter::once(backup).chain(mirrors) {
        let folder = Folder::new();
        let (program, mut client, load) = start_busy(&folder);
        client.done(command, copy("full", others));
        load.wait_for_progress(100);
        let writes = load.stop();
        program.stop();
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        assert_holds_all_writes(&folder, "disk.img", &writes);
    }
}

#[test]
fn upgrade_is_refused_while_there_is_a_job() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, EXPORT);
    add_bitmap(&mut client, "disk", "b");
    let slow = json!({"speed": 1, "auto-dismiss": false});
    begin_backup(&mut client, "full", slow);
    let said = client.error_of("upgrade");
    for part in ["job 'j' is running", "job-cancel"] {
        assert!(said.contains(part), "{said}");
    }
    cancel(&mut client);
    let said = client.error_of("upgrade");
    assert!(said.contains("job-dismiss"), "{said}");
    client.execute("job-dismiss id=j");
    client.execute("upgrade");
    let mut client = Client::connect(&folder.join("qmp"));
    assert_eq!(bitmap(&mut client, "disk", "b")["recording"], true);
    client.execute("quit");
    program.ended();
}
