//! Disks that fail or are full while they are copied: the guest gets no error, and the job does what its policies say.

use serde_json::{Value, json};

use crate::client::Client;
use crate::guest::{Guest, OUT};
use crate::process::{Folder, Process};
use crate::{MIB, assert_same_content, backup, completed, start_with_disks};

const FILTERS: &str = "--blockdev blkdebug,node-name=source,image=disk --blockdev blkdebug,node-name=target,image=copy \
    --export vhost-user-blk,id=e,node-name=source,writable=on,addr.type=unix,addr.path=e.sock";

fn started(folder: &Folder) -> (Process, Client, Guest) {
    let (program, client) = start_with_disks(folder, 4 * MIB, FILTERS);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    (program, client, guest)
}

fn set_rules(client: &mut Client, node: &str, rules: Value) {
    let arguments = json!({"node-name": node, "inject-error": rules});
    client.done("x-blkdebug-set", arguments);
}

fn filtered(others: Value) -> Value {
    let mut arguments = backup("full", json!({"device": "source", "target": "target"}));
    for (key, value) in others.as_object().unwrap() {
        arguments[key] = value.clone();
    }
    arguments
}

fn job(client: &mut Client) -> Value {
    client.done("query-block-jobs", json!({}))[0].take()
}

#[test]
fn failing_disk_ends_the_job_with_its_error() {
    let folder = Folder::new();
    let (program, mut client, _guest) = started(&folder);
    for (node, iotype, operation, errno, text) in [
        ("source", "read", "read", 5, "Input/output error"),
        ("target", "write", "write", 28, "No space left on device"),
    ] {
        set_rules(
            &mut client,
            node,
            json!([{"iotype": iotype, "errno": errno}]),
        );
        client.done("blockdev-backup", filtered(json!({"auto-dismiss": false})));
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(
            error,
            json!({"device": "j", "operation": operation, "action": "report"})
        );
        assert_eq!(completed(&mut client)["error"], text);
        let jobs = client.done("query-jobs", json!({}));
        assert_eq!(
            (&jobs[0]["status"], &jobs[0]["error"]),
            (&json!("concluded"), &json!(text))
        );
        client.done("job-dismiss", json!({"id": "j"}));
        set_rules(&mut client, node, json!([]));
    }
    program.stop();
}

#[test]
fn job_whose_target_is_full_waits_until_it_is_resumed() {
    for policy in ["enospc", "stop"] {
        let folder = Folder::new();
        let (program, mut client, _guest) = started(&folder);
        set_rules(
            &mut client,
            "target",
            json!([{"iotype": "write", "errno": 28}]),
        );
        client.done(
            "blockdev-backup",
            filtered(json!({"on-target-error": policy})),
        );
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(error["action"], "stop");
        let stopped = job(&mut client);
        let expected = json!({"io-status": "nospace", "paused": true, "status": "paused"});
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&stopped[key], value, "{stopped}");
        }
        set_rules(&mut client, "target", json!([]));
        client.done("block-job-resume", json!({"device": "j"}));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        assert_same_content(&folder, "disk.img", "copy.img");
        program.stop();
    }
}

/// The first part's write fails after the job was resumed, and that of a later part, which began at once as well, before.
#[test]
fn error_of_a_write_before_the_job_was_resumed_does_not_stop_it_again() {
    let folder = Folder::new();
    let (program, mut client, _guest) = started(&folder);
    let rules = json!([
        {"iotype": "write", "sector": 2048, "errno": 28, "once": true},
        {"iotype": "write", "sector": 0, "action": "hang"},
        {"iotype": "write", "sector": 0, "errno": 28},
    ]);
    set_rules(&mut client, "target", rules);
    client.done(
        "blockdev-backup",
        filtered(json!({"on-target-error": "stop"})),
    );
    client.wait_for_event("BLOCK_JOB_ERROR");
    client.done("job-resume", json!({"id": "j"}));
    set_rules(&mut client, "target", json!([]));
    let end = client.wait_for_event_of(&["BLOCK_JOB_ERROR", "BLOCK_JOB_COMPLETED"]);
    assert_eq!(end["event"], "BLOCK_JOB_COMPLETED", "{end}");
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

#[test]
fn enospc_reports_other_errors() {
    let folder = Folder::new();
    let (program, mut client, _guest) = started(&folder);
    set_rules(
        &mut client,
        "target",
        json!([{"iotype": "write", "errno": 5}]),
    );
    client.done(
        "blockdev-backup",
        filtered(json!({"on-target-error": "enospc"})),
    );
    assert_eq!(client.wait_for_event("BLOCK_JOB_ERROR")["action"], "report");
    completed(&mut client);
    program.stop();
}

#[test]
fn parts_whose_errors_are_ignored_are_copied_later() {
    let folder = Folder::new();
    let (program, mut client, _guest) = started(&folder);
    set_rules(
        &mut client,
        "source",
        json!([{"iotype": "read", "errno": 5, "once": true}]),
    );
    client.done(
        "blockdev-backup",
        filtered(json!({"on-source-error": "ignore"})),
    );
    let error = client.wait_for_event("BLOCK_JOB_ERROR");
    assert_eq!(
        error,
        json!({"device": "j", "operation": "read", "action": "ignore"})
    );
    let data = completed(&mut client);
    assert!(data.get("error").is_none(), "{data}");
    assert_same_content(&folder, "disk.img", "copy.img");
    program.stop();
}

/// The old data cannot be kept, so whatever the policy the job ends, and the guest goes on.
#[test]
fn write_whose_old_data_cannot_be_copied_succeeds_and_ends_the_job() {
    for (node, iotype) in [("target", "write"), ("source", "read")] {
        let folder = Folder::new();
        let (program, mut client, mut guest) = started(&folder);
        // The copier gets not so far.
        let slow = json!({"speed": 1, "on-target-error": "stop", "on-source-error": "ignore"});
        set_rules(
            &mut client,
            node,
            json!([{"iotype": iotype, "errno": 28, "sector": 6144}]),
        );
        client.done("blockdev-backup", filtered(slow));
        guest.request(0, OUT, 6144 / 8, 9);
        let error = client.wait_for_event("BLOCK_JOB_ERROR");
        assert_eq!(error["action"], "report");
        assert_eq!(completed(&mut client)["error"], "No space left on device");
        guest.request(0, OUT, 6144 / 8 + 1, 9);
        let content = std::fs::read(folder.join("disk.img")).unwrap();
        assert_eq!(content[6144 * 512..6144 * 512 + 8192], [9; 8192]);
        program.stop();
    }
}

#[test]
fn flush_of_the_target_that_fails_fails_the_job() {
    let folder = Folder::new();
    let (program, mut client, _guest) = started(&folder);
    set_rules(
        &mut client,
        "target",
        json!([{"iotype": "flush", "errno": 5}]),
    );
    client.done("blockdev-backup", filtered(json!({})));
    let data = completed(&mut client);
    assert_eq!(data["error"], "Input/output error");
    assert_eq!(data["offset"], data["len"], "all was copied");
    program.stop();
}

/// The kernel reports lost data once: a second flush would succeed.
#[test]
fn flush_of_the_target_that_fails_once_fails_the_job_whatever_the_policy() {
    for policy in ["ignore", "stop", "enospc"] {
        let folder = Folder::new();
        let (program, mut client, _guest) = started(&folder);
        let once = json!([{"iotype": "flush", "errno": 28, "once": true}]);
        set_rules(&mut client, "target", once);
        client.done(
            "blockdev-backup",
            filtered(json!({"on-target-error": policy})),
        );
        let data = completed(&mut client);
        assert_eq!(data["error"], "No space left on device", "{policy}");
        program.stop();
    }
}
