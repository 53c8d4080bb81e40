//! Images that `blockdev-create` makes: events and errors of qemu-storage-daemon, and files that are in use.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::control::events_until;
use crate::process::{Folder, Process, words};
use crate::{MIB, assert_same_content, backup, completed, start, start_with_disks};

const SUCCEEDED: [&str; 5] = ["created", "running", "waiting", "pending", "concluded"];
const FAILED: [&str; 4] = ["created", "running", "aborting", "concluded"];

/// Arguments of the job `j` that creates `name`, and other options that replace these.
fn create(name: &str, others: Value) -> Value {
    let mut options = json!({"driver": "file", "filename": name, "size": MIB});
    for (key, value) in others.as_object().unwrap() {
        options[key] = value.clone();
    }
    json!({"job-id": "j", "options": options})
}

/// Runs a job to its end, and returns its error.
#[track_caller]
fn error_of(client: &mut Client, arguments: Value) -> Option<String> {
    client.done("blockdev-create", arguments);
    let events = events_until(client, "concluded");
    let mut jobs = client.done("query-jobs", json!({}));
    let error = jobs[0]["error"].take();
    client.done("job-dismiss", json!({"id": "j"}));
    assert_eq!(events_until(client, "null"), ["null"]);
    let error = error.as_str().map(str::to_owned);
    match &error {
        None => assert_eq!(events, SUCCEEDED),
        Some(_) => assert_eq!(events, FAILED),
    }
    error
}

/// Bytes of a file, and those that have space.
fn size_and_space(folder: &Folder, name: &str) -> (u64, u64) {
    let metadata = fs::metadata(folder.join(name)).unwrap();
    (metadata.len(), metadata.blocks() * 512)
}

#[test]
fn job_that_creates_an_image_stays_until_it_is_dismissed() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    client.done("blockdev-create", create("new.img", json!({})));
    assert_eq!(events_until(&mut client, "concluded"), SUCCEEDED);
    let jobs = client.done("query-jobs", json!({}));
    let expected = json!([{"id": "j", "type": "create", "status": "concluded",
        "current-progress": 1, "total-progress": 1}]);
    assert_eq!(jobs, expected);
    assert_eq!(client.done("query-block-jobs", json!({})), json!([]));
    for (command, key) in [("block-job-cancel", "device"), ("block-job-dismiss", "id")] {
        let said = client.fails(command, json!({key: "j"}));
        assert_eq!(said, "Block job 'j' not found");
    }
    let again = client.fails("blockdev-create", create("new.img", json!({})));
    assert_eq!(again, "Job ID 'j' already in use");
    client.done("job-dismiss", json!({"id": "j"}));
    assert_eq!(events_until(&mut client, "null"), ["null"]);
    assert_eq!(size_and_space(&folder, "new.img").0, MIB);
    program.stop();
}

#[test]
fn created_image_is_the_target_of_a_backup() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, "");
    assert_eq!(error_of(&mut client, create("new.img", json!({}))), None);
    let node = json!({"driver": "file", "node-name": "new", "filename": "new.img", "cache": {"direct": false}});
    client.done("blockdev-add", node);
    client.done("blockdev-backup", backup("full", json!({"target": "new"})));
    completed(&mut client);
    assert_same_content(&folder, "disk.img", "new.img");
    program.stop();
}

/// The job may have nothing left to do when it is cancelled.
#[test]
fn cancelled_job_says_whether_there_is_an_image() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    for _ in 0..20 {
        client.send("blockdev-create", &create("new.img", json!({})));
        client.send("job-cancel", &json!({"id": "j"}));
        for _ in 0..2 {
            // It may have ended.
            client.answer();
        }
        events_until(&mut client, "concluded");
        let job = client.done("query-jobs", json!({}))[0].take();
        let expected = match job.get("error") {
            Some(_) => 0,
            None => MIB,
        };
        assert_eq!(size_and_space(&folder, "new.img").0, expected, "{job}");
        client.done("job-dismiss", json!({"id": "j"}));
        events_until(&mut client, "null");
    }
    program.stop();
}

#[test]
fn files_of_the_daemon_are_not_replaced() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let line = "--blockdev file,node-name=disk,filename=disk.img,locking=off,bitmap-file=bitmaps --pidfile pid";
    let (program, mut client) = start(&folder, line);
    for name in ["disk.img", "bitmaps", "pid"] {
        let before = fs::read(folder.join(name)).unwrap();
        let said = error_of(&mut client, create(name, json!({}))).unwrap();
        assert!(said.contains("choose another file"), "{name}: {said}");
        assert!(fs::read(folder.join(name)).unwrap() == before, "{name}");
    }
    program.stop();
}

#[test]
fn existing_file_is_replaced_with_the_wanted_space() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    for (preallocation, is_allocated) in [("off", false), ("falloc", true), ("full", true)] {
        fs::write(folder.join("new.img"), vec![7; 3 << 20]).unwrap();
        let others =
            json!({"preallocation": preallocation, "nocow": true, "extent-size-hint": 65536});
        assert_eq!(error_of(&mut client, create("new.img", others)), None);
        let (size, space) = size_and_space(&folder, "new.img");
        assert_eq!((size, space >= MIB), (MIB, is_allocated), "{preallocation}");
        let content = fs::read(folder.join("new.img")).unwrap();
        assert!(content.iter().all(|byte| *byte == 0), "{preallocation}");
    }
    program.stop();
}

#[test]
fn errors_are_those_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    fs::create_dir(folder.join("folder")).unwrap();
    for (name, others, error) in [
        (
            "folder",
            json!({}),
            "Could not create 'folder': Is a directory",
        ),
        (
            "no/new",
            json!({}),
            "Could not create 'no/new': No such file or directory",
        ),
        (
            "",
            json!({}),
            "Could not create '': No such file or directory",
        ),
        (
            "new",
            json!({"size": 1_u64 << 63}),
            "Could not resize file: Invalid argument",
        ),
        (
            "new",
            json!({"size": -1}),
            "Could not resize file: Invalid argument",
        ),
        (
            "new",
            json!({"preallocation": "metadata"}),
            "Unsupported preallocation mode: metadata",
        ),
        (
            "new",
            json!({"extent-size-hint": 1_u64 << 32}),
            "Extent size hint is too large",
        ),
    ] {
        let said = error_of(&mut client, create(name, others));
        assert_eq!(said.as_deref(), Some(error));
    }
    let said = error_of(&mut client, create("qmp", json!({})));
    assert!(said.unwrap().contains("is a socket"), "a monitor's socket");
    for (others, error) in [
        (
            json!({"driver": "qcow2"}),
            "Parameter 'options.driver' does not accept value 'qcow2', only 'file'",
        ),
        (
            json!({"driver": "raw", "file": "disk"}),
            "Parameter 'options.driver' does not accept value 'raw', only 'file'",
        ),
        (
            json!({"size": "1M"}),
            "Parameter 'options.size' expects uint64",
        ),
        (
            json!({"backing": "x"}),
            "Parameter 'options.backing' is unexpected",
        ),
    ] {
        let said = client.fails("blockdev-create", create("new", others));
        assert_eq!(said, error);
    }
    let mut unnamed = create("new", json!({}));
    unnamed["job-id"] = "1 2".into();
    let said = client.fails("blockdev-create", unnamed);
    assert_eq!(said, "Invalid job ID '1 2'");
    assert_eq!(client.done("query-jobs", json!({})), json!([]));
    program.stop();
}

#[test]
fn file_that_is_in_use_is_not_changed() {
    let folder = Folder::new();
    fs::write(folder.join("used.img"), [7; 512]).unwrap();
    let (program, mut client) = start(&folder, "");
    let node = |others: Value| {
        let mut node = json!({"driver": "file", "node-name": "n", "filename": "used.img", "cache": {"direct": false}});
        for (key, value) in others.as_object().unwrap() {
            node[key] = value.clone();
        }
        node
    };
    for options in [
        json!({}),
        json!({"read-only": true}),
        json!({"read-only": true, "force-share": true}),
        json!({"locking": "off"}),
        json!({"active": false}),
    ] {
        client.done("blockdev-add", node(options.clone()));
        let said = error_of(&mut client, create("./used.img", json!({})));
        assert!(said.unwrap().contains("in use by node 'n'"), "{options}");
        client.done("blockdev-del", json!({"node-name": "n"}));
    }
    let others = "--blockdev file,node-name=n,filename=used.img,cache.direct=off,read-only=on,force-share=on \
        --chardev socket,id=c,path=other,server=on,wait=off --monitor chardev=c";
    let mut other = Process::spawn(folder.command(words(others)));
    other.wait_until_accepting(&folder.join("other"));
    let said = error_of(&mut client, create("used.img", json!({}))).unwrap();
    assert!(said.contains("used.img: failed to get"), "{said}");
    assert_eq!(fs::read(folder.join("used.img")).unwrap(), [7; 512]);
    other.stop();
    assert_eq!(error_of(&mut client, create("used.img", json!({}))), None);
    program.stop();
}

/// So much that writing it takes long, and is not done before it is cancelled.
fn begin_to_write_much(folder: &Folder, client: &mut Client) {
    let much = json!({"size": 8192 * MIB, "preallocation": "full"});
    client.done("blockdev-create", create("new.img", much));
    eventually("zeroes are written", || {
        folder.has("new.img") && size_and_space(folder, "new.img").1 >= MIB
    });
}

#[test]
fn job_that_is_cancelled_leaves_an_empty_file() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    begin_to_write_much(&folder, &mut client);
    let said = client.fails("job-pause", json!({"id": "j"}));
    assert!(said.contains("does not pause"), "{said}");
    let mut second = create("new.img", json!({}));
    second["job-id"] = "second".into();
    client.done("blockdev-create", second);
    eventually("the second job has ended", || {
        let jobs = client.done("query-jobs", json!({}));
        jobs[1]["status"] == "concluded"
    });
    let jobs = client.done("query-jobs", json!({}));
    let error = jobs[1]["error"].as_str().unwrap();
    assert!(
        error.contains("perhaps this daemon: choose another file"),
        "{jobs}"
    );
    let first = json!({"id": "j", "type": "create", "status": "running", "current-progress": 0, "total-progress": 1});
    assert_eq!(jobs[0], first);
    client.take_events();
    client.done("job-cancel", json!({"id": "j"}));
    assert_eq!(
        events_until(&mut client, "concluded"),
        ["aborting", "concluded"]
    );
    let jobs = client.done("query-jobs", json!({}));
    assert_eq!(jobs[0]["error"], "Operation canceled");
    assert_eq!(size_and_space(&folder, "new.img"), (0, 0));
    program.stop();
}

#[test]
fn daemon_that_ends_cancels_the_job() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    begin_to_write_much(&folder, &mut client);
    let said = client.fails("upgrade", json!({}));
    assert!(said.contains("job 'j' is running"), "{said}");
    assert_eq!(program.stop().code, Some(0));
    assert_eq!(events_until(&mut client, "concluded"), FAILED);
    assert_eq!(size_and_space(&folder, "new.img"), (0, 0));
}

#[test]
fn strict_sandbox_holds_for_new_files() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let line = "--sandbox strict --blockdev file,node-name=disk,filename=disk.img,cache.direct=off";
    let (program, mut client) = start(&folder, line);
    let said = error_of(&mut client, create("new.img", json!({})));
    assert_eq!(
        said.unwrap(),
        "Could not create 'new.img': Permission denied"
    );
    assert!(!folder.has("new.img"));
    program.stop();
}
