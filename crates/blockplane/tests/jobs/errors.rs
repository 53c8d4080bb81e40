//! Disks that fail or are full while they are copied: the guest gets no error, and the job does what its policies say.

use serde_json::{Value, json};

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{OUT, RequestDriver};
use crate::{
    MIB, assert_has, assert_same_content, begin_backup, failed, job, merged, set_faults,
    start_with_guest, succeeded,
};

const FILTERS: &str = "--blockdev blkdebug,node-name=source,image=disk --blockdev blkdebug,node-name=target,image=copy \
    --export vhost-user-blk,id=e,node-name=source,writable=on,addr.type=unix,addr.path=e.sock";

fn started() -> (Folder, Process, Client, RequestDriver) {
    let folder = Folder::new();
    let (program, client, guest) = start_with_guest(&folder, 4 * MIB, FILTERS);
    (folder, program, client, guest)
}

/// Begins a backup of one filter to the other.
fn begin(client: &mut Client, others: Value) {
    let filters = json!({"device": "source", "target": "target"});
    begin_backup(client, "full", merged(filters, others));
}

#[test]
fn failing_disk_ends_the_job_with_its_error() {
    let (_folder, program, mut client, _guest) = started();
    for (node, iotype, errno, policy, text) in [
        ("source", "read", 5, "report", "Input/output error"),
        ("target", "write", 28, "report", "No space left on device"),
        ("target", "write", 5, "enospc", "Input/output error"),
    ] {
        let rules = json!([{"iotype": iotype, "errno": errno}]);
        set_faults(&mut client, node, rules);
        let others = json!({"auto-dismiss": false, "on-target-error": policy});
        begin(&mut client, others);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        let expected = json!({"device": "j", "operation": iotype, "action": "report"});
        assert_eq!(error, expected);
        assert_eq!(failed(&mut client), text);
        let jobs = client.execute("query-jobs");
        assert_has(&jobs[0], json!({"status": "concluded", "error": text}));
        client.execute("job-dismiss id=j");
        set_faults(&mut client, node, json!([]));
    }
    program.stop();
}

#[test]
fn job_whose_target_is_full_waits_until_it_is_resumed() {
    let (folder, program, mut client, _guest) = started();
    for policy in ["enospc", "stop"] {
        let full = json!([{"iotype": "write", "errno": 28}]);
        set_faults(&mut client, "target", full);
        begin(&mut client, json!({"on-target-error": policy}));
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(error["action"], "stop");
        let stopped = job(&mut client);
        let expected = json!({"io-status": "nospace", "paused": true, "status": "paused"});
        assert_has(&stopped, expected);
        set_faults(&mut client, "target", json!([]));
        client.execute("block-job-resume device=j");
        succeeded(&mut client);
        assert_same_content(&folder, "disk.img", "copy.img");
    }
    program.stop();
}

/// The first part's write fails after the job was resumed, and that of a later part, which began at once as well, before.
#[test]
fn error_of_a_write_before_the_job_was_resumed_does_not_stop_it_again() {
    let (folder, program, mut client, _guest) = started();
    let rules = json!([
        {"iotype": "write", "sector": 2048, "errno": 28, "once": true},
        {"iotype": "write", "sector": 0, "action": "hang"},
        {"iotype": "write", "sector": 0, "errno": 28},
    ]);
    set_faults(&mut client, "target", rules);
    begin(&mut client, json!({"on-target-error": "stop"}));
    client.wait_for_event("BLOCK_JOB_ERROR");
    client.execute("job-resume id=j");
    set_faults(&mut client, "target", json!([]));
    let end = client.wait_for_event_of(&["BLOCK_JOB_ERROR", "BLOCK_JOB_COMPLETED"]);
    assert_eq!(end["event"], "BLOCK_JOB_COMPLETED", "{end}");
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

#[test]
fn parts_whose_errors_are_ignored_are_copied_later() {
    let (folder, program, mut client, _guest) = started();
    let once = json!([{"iotype": "read", "errno": 5, "once": true}]);
    set_faults(&mut client, "source", once);
    begin(&mut client, json!({"on-source-error": "ignore"}));
    let error = client.wait_for_event("BLOCK_JOB_ERROR");
    let expected = json!({"device": "j", "operation": "read", "action": "ignore"});
    assert_eq!(error, expected);
    succeeded(&mut client);
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

/// The old data cannot be kept, so whatever the policy the job ends, and the guest goes on.
#[test]
fn write_whose_old_data_cannot_be_copied_succeeds_and_ends_the_job() {
    let (folder, program, mut client, mut guest) = started();
    for (byte, node, iotype) in [(8, "target", "write"), (9, "source", "read")] {
        let rules = json!([{"iotype": iotype, "errno": 28, "sector": 6144}]);
        set_faults(&mut client, node, rules);
        // The copier gets not so far.
        let slow = json!({"speed": 1, "on-target-error": "stop", "on-source-error": "ignore"});
        begin(&mut client, slow);
        guest.request(0, OUT, 6144 / 8, byte);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(error["action"], "report");
        assert_eq!(failed(&mut client), "No space left on device");
        guest.request(0, OUT, 6144 / 8 + 1, byte);
        let content = std::fs::read(folder.join("disk.img")).unwrap();
        assert_eq!(content[6144 * 512..6144 * 512 + 8192], [byte; 8192]);
        set_faults(&mut client, node, json!([]));
    }
    program.stop();
}

/// The kernel reports lost data once: a second flush would succeed.
#[test]
fn flush_of_the_target_that_fails_once_fails_the_job_whatever_the_policy() {
    let (_folder, program, mut client, _guest) = started();
    for policy in ["report", "ignore", "stop", "enospc"] {
        let once = json!([{"iotype": "flush", "errno": 28, "once": true}]);
        set_faults(&mut client, "target", once);
        begin(&mut client, json!({"on-target-error": policy}));
        let data = crate::completed(&mut client);
        assert_eq!(data["error"], "No space left on device", "{policy}");
        assert_eq!(data["offset"], data["len"], "all was copied");
    }
    program.stop();
}
