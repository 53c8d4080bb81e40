//! Images that `blockdev-create` makes: events and errors of qemu-storage-daemon, and files that are in use.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::control::{assert_events, events_until};
use crate::process::{Folder, Process, words};
use crate::{MIB, assert_no_jobs, assert_refused, merged, start};

const SUCCEEDED: &str = "created running waiting pending concluded";
const FAILED: &str = "created running aborting concluded";

/// Arguments of the job `j` that creates `name`, and other options that replace these.
fn create(name: &str, others: Value) -> Value {
    let options = json!({"driver": "file", "filename": name, "size": MIB});
    json!({"job-id": "j", "options": merged(options, others)})
}

/// Runs a job to its end, and returns its error.
#[track_caller]
fn error_of(client: &mut Client, arguments: Value) -> Option<String> {
    client.done("blockdev-create", arguments);
    let events = events_until(client, "concluded").join(" ");
    let jobs = client.execute("query-jobs");
    let error = jobs[0]["error"].as_str();
    assert_eq!(events, if error.is_some() { FAILED } else { SUCCEEDED });
    client.execute("job-dismiss id=j");
    assert_events(client, "null");
    error.map(str::to_owned)
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
    assert_events(&mut client, SUCCEEDED);
    let jobs = client.execute("query-jobs");
    let expected = json!([{"id": "j", "type": "create", "status": "concluded",
        "current-progress": 1, "total-progress": 1}]);
    assert_eq!(jobs, expected);
    assert_eq!(client.execute("query-block-jobs"), json!([]));
    for (command, key) in [("block-job-cancel", "device"), ("block-job-dismiss", "id")] {
        let said = client.fails(command, json!({key: "j"}));
        assert_eq!(said, "Block job 'j' not found");
    }
    let again = client.fails("blockdev-create", create("new.img", json!({})));
    assert_eq!(again, "Job ID 'j' already in use");
    client.execute("job-dismiss id=j");
    assert_events(&mut client, "null");
    assert_eq!(size_and_space(&folder, "new.img").0, MIB);
    client.execute("blockdev-add driver=file node-name=new filename=new.img");
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
        let job = client.execute("query-jobs")[0].take();
        let expected = if job.get("error").is_some() { 0 } else { MIB };
        assert_eq!(size_and_space(&folder, "new.img").0, expected, "{job}");
        client.execute("job-dismiss id=j");
        events_until(&mut client, "null");
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
        let (_, space) = size_and_space(&folder, "new.img");
        assert_eq!(space >= MIB, is_allocated, "{preallocation}");
        let content = fs::read(folder.join("new.img")).unwrap();
        assert!(content == vec![0; 1 << 20], "{preallocation}");
    }
    program.stop();
}

#[test]
fn errors_are_those_of_qemu() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    fs::create_dir(folder.join("folder")).unwrap();
    for line in r#"
{"filename": "folder"} | Could not create 'folder': Is a directory
{"filename": "no/new"} | Could not create 'no/new': No such file or directory
{"filename": ""} | Could not create '': No such file or directory
{"size": 9223372036854775808} | Could not resize file: Invalid argument
{"size": -1} | Could not resize file: Invalid argument
{"preallocation": "metadata"} | Unsupported preallocation mode: metadata
{"extent-size-hint": 4294967296} | Extent size hint is too large
"#
    .trim()
    .lines()
    {
        let (others, error) = line.split_once(" | ").unwrap();
        let others = serde_json::from_str(others).unwrap();
        let said = error_of(&mut client, create("new", others));
        assert_eq!(said.as_deref(), Some(error));
    }
    let said = error_of(&mut client, create("qmp", json!({}))).unwrap();
    assert!(said.contains("is a socket"), "a monitor's socket: {said}");
    let lines = r#"
{"driver": "qcow2"} | Parameter 'options.driver' does not accept value 'qcow2', only 'file'
{"driver": "raw", "file": "disk"} | Parameter 'options.driver' does not accept value 'raw', only 'file'
{"size": "1M"} | Parameter 'options.size' expects uint64
{"backing": "x"} | Parameter 'options.backing' is unexpected
"#;
    let arguments = |others| create("new", others);
    assert_refused(&mut client, "blockdev-create", arguments, lines);
    let unnamed = merged(create("new", json!({})), json!({"job-id": "1 2"}));
    let said = client.fails("blockdev-create", unnamed);
    assert_eq!(said, "Invalid job ID '1 2'");
    program.stop();
}

#[test]
fn file_that_is_in_use_is_not_changed() {
    let folder = Folder::new();
    fs::write(folder.join("used.img"), [7; 512]).unwrap();
    folder.image("disk.img", MIB);
    let line = "--blockdev file,node-name=disk,filename=disk.img,locking=off,bitmap-file=bitmaps --pidfile pid";
    let (program, mut client) = start(&folder, line);
    for name in ["disk.img", "bitmaps", "pid"] {
        let before = fs::read(folder.join(name)).unwrap();
        let said = error_of(&mut client, create(name, json!({}))).unwrap();
        assert!(said.contains("choose another file"), "{name}: {said}");
        assert!(fs::read(folder.join(name)).unwrap() == before, "{name}");
    }
    let node = json!({"driver": "file", "node-name": "n", "filename": "used.img", "cache": {"direct": false}});
    for options in [
        json!({}),
        json!({"read-only": true}),
        json!({"read-only": true, "force-share": true}),
        json!({"locking": "off"}),
        json!({"active": false}),
    ] {
        client.done("blockdev-add", merged(node.clone(), options.clone()));
        let said = error_of(&mut client, create("./used.img", json!({})));
        assert!(said.unwrap().contains("in use by node 'n'"), "{options}");
        client.execute("blockdev-del node-name=n");
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
    let said = client.error_of("job-pause id=j");
    assert!(said.contains("does not pause"), "{said}");
    let second = merged(create("new.img", json!({})), json!({"job-id": "second"}));
    client.done("blockdev-create", second);
    eventually("the second job has ended", || {
        client.execute("query-jobs")[1]["status"] == "concluded"
    });
    let jobs = client.execute("query-jobs");
    let error = jobs[1]["error"].as_str().unwrap();
    let expected = "perhaps this daemon: choose another file";
    assert!(error.contains(expected), "{jobs}");
    let first = json!({"id": "j", "type": "create", "status": "running", "current-progress": 0, "total-progress": 1});
    assert_eq!(jobs[0], first);
    client.take_events();
    client.execute("job-cancel id=j");
    assert_events(&mut client, "aborting concluded");
    let jobs = client.execute("query-jobs");
    assert_eq!(jobs[0]["error"], "Operation canceled");
    assert_eq!(size_and_space(&folder, "new.img"), (0, 0));
    program.stop();
}

#[test]
fn daemon_that_ends_cancels_the_job() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    begin_to_write_much(&folder, &mut client);
    let said = client.error_of("upgrade");
    assert!(said.contains("job 'j' is running"), "{said}");
    program.stop();
    assert_events(&mut client, FAILED);
    assert_eq!(size_and_space(&folder, "new.img"), (0, 0));
}

#[test]
fn strict_sandbox_holds_for_new_files() {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    let line = "--sandbox strict --blockdev file,node-name=disk,filename=disk.img,cache.direct=off";
    let (program, mut client) = start(&folder, line);
    let said = error_of(&mut client, create("new.img", json!({}))).unwrap();
    assert_eq!(said, "Could not create 'new.img': Permission denied");
    assert!(!folder.has("new.img"));
    assert_no_jobs(&mut client);
    program.stop();
}
