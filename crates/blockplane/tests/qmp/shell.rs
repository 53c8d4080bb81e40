//! `blockplane qmp` and `blockplane info` on a real daemon.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::process::{Folder, Process, ProcessOutput, words};
use crate::start;

const DISK: &str = "--object iothread,id=io0 --blockdev file,node-name=d,filename=disk \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,num-queues=2,iothread=io0";

/// What was printed, as JSON.
fn printed_json(ended: &ProcessOutput) -> Value {
    serde_json::from_str(ended.assert_success()).unwrap()
}

/// Asserts that a command failed, printed nothing and named these words in its error.
#[track_caller]
fn assert_failed(ended: &ProcessOutput, words: &[&str]) {
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(1), ""),
        "{ended:?}"
    );
    for word in words {
        assert!(
            ended.stderr.contains(word),
            "no '{word}' in: {}",
            ended.stderr
        );
    }
}

#[test]
fn qmp_command_queries_and_changes_a_daemon() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let (program, mut client) = start(&folder, DISK);
    let set = "qmp qmp qom-set path=/objects/io0 property=poll-max-ns value=5";
    assert_eq!(printed_json(&folder.run(set)), json!({}));
    assert_eq!(
        client.done("query-iothreads", json!({}))[0]["poll-max-ns"],
        5
    );
    let node = "qmp qmp blockdev-add driver=file node-name=d2 filename=disk cache.direct=false read-only=true locking=off";
    assert_eq!(printed_json(&folder.run(node)), json!({}));
    let nodes = client.done("query-named-block-nodes", json!({}));
    assert_eq!(nodes[0]["cache"]["direct"], false);
    let request = json!({"execute": "blockdev-del", "arguments": {"node-name": "d2"}}).to_string();
    let verbatim = Process::spawn(folder.command(["qmp", "qmp", &request])).ended();
    assert_eq!(printed_json(&verbatim), json!({}));
    assert_eq!(
        client.done("query-named-block-nodes", json!({}))[1],
        Value::Null
    );

    let export = "qmp qmp block-export-add type=vhost-user-blk id=f node-name=d addr.type=unix addr.path=f.sock";
    assert_failed(
        &folder.run(&format!("{export} serial=1001")),
        &["'serial', expected: string", "write 'serial=\"1001\"'"],
    );
    assert_eq!(
        printed_json(&folder.run(&format!("{export} serial=\"1001\""))),
        json!({})
    );
    folder.run("qmp qmp block-export-del id=f").assert_success();

    assert_failed(
        &folder.run("qmp qmp blockdev-del node-name=d"),
        &["GenericError: ", "in use"],
    );
    assert_failed(
        &folder.run("qmp qmp nope"),
        &["CommandNotFound: The command nope has not been found"],
    );
    assert_failed(&folder.run("qmp qmp x y"), &["KEY=VALUE is expected"]);
    assert_failed(
        &folder.run("qmp e.sock query-version"),
        &["e.sock", "vhost-user socket"],
    );
    assert_failed(
        &folder.run("info nowhere"),
        &["there is no socket nowhere", "--monitor"],
    );
    program.stop();
}

#[test]
fn qmp_list_shows_commands_of_the_monitor() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, "");
    let all = folder.run("qmp qmp --list");
    let lines: Vec<&str> = all.assert_success().lines().collect();
    assert!(lines.contains(&"quit"), "{lines:?}");
    assert!(lines.contains(&"object-del id=str"), "{lines:?}");
    assert!(
        lines.contains(&"block-export-del id=str [mode=safe|hard]"),
        "{lines:?}"
    );
    let some = folder.run("qmp qmp --list export-del");
    assert_eq!(
        some.assert_success(),
        "block-export-del id=str [mode=safe|hard]\n"
    );
    assert_failed(
        &folder.run("qmp qmp --list nope"),
        &["no command's name contains 'nope'"],
    );
    program.stop();
}

#[test]
fn qmp_script_stops_at_the_first_error() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "");
    let run = |script: &str| {
        let mut command = folder.command(words("qmp qmp -"));
        fs::write(folder.join("script"), script).unwrap();
        command.stdin(Stdio::from(fs::File::open(folder.join("script")).unwrap()));
        Process::spawn(command).ended()
    };
    let good = run(
        "# two\nobject-add qom-type=iothread id=a\n\n{\"execute\": \"qom-get\", \"arguments\": \
        {\"path\": \"/objects/a\", \"property\": \"poll-max-ns\"}}\n",
    );
    assert_eq!(good.assert_success(), "{}\n200000\n");
    let bad = run("object-del id=b\nobject-del id=a\n");
    assert_failed(&bad, &["object 'b' not found (line 1: object-del id=b)"]);
    assert_eq!(client.done("query-iothreads", json!({}))[0]["id"], "a");
    program.stop();
}

#[test]
fn qmp_events_prints_events_until_the_daemon_ends() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let (program, mut client) = start(&folder, DISK);
    let command = folder.command(words("qmp qmp query-version --events"));
    let watcher = Process::spawn(command);
    // It is connected when it has its answer.
    eventually("an answer", || watcher.stdout().lines().count() == 1);
    client.done("block-export-del", json!({"id": "e"}));
    client.done("quit", json!({}));
    program.ended().assert_success();
    let ended = watcher.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("closed the connection"), "{ended:?}");
    let event: Value = serde_json::from_str(ended.stdout.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&event["event"], &event["data"]["id"]),
        (&json!("BLOCK_EXPORT_DELETED"), &json!("e"))
    );
}

#[test]
fn info_shows_exports_nodes_and_iothreads() {
    let folder = Folder::new();
    folder.image("disk", 1 << 20);
    let (program, _client) = start(&folder, DISK);
    let tables = folder.run("info qmp");
    let rows: Vec<Vec<&str>> = tables
        .assert_success()
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let row = |heading: &str| {
        let at = rows
            .iter()
            .position(|row| row.first() == Some(&heading))
            .unwrap();
        &rows[at + 1]
    };
    assert_eq!(row("EXPORT")[..4], ["e", "d", "1", "MiB"]);
    assert_eq!(row("EXPORT").last(), Some(&"e.sock"));
    assert_eq!(row("NODE")[..4], ["d", "file", "1", "MiB"]);
    assert_eq!(row("IOTHREAD")[0], "io0");
    let json = printed_json(&folder.run("info qmp nodes exports --json"));
    assert_eq!(json["nodes"][0]["node-name"], "d");
    assert_eq!(json["exports"][0]["socket"], "e.sock");
    assert!(json.get("iothreads").is_none());
    program.stop();
}

/// The commands work with any QMP monitor.
#[test]
fn operator_commands_work_with_qemu_storage_daemon() {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let folder = Folder::new();
    let mut command = std::process::Command::new("qemu-storage-daemon");
    command
        .args(words(&format!(
            "--blockdev null-co,node-name=n,size=1048576 {}",
            crate::MONITOR
        )))
        .current_dir(folder.path())
        .stdin(Stdio::null());
    let mut program = Process::spawn(command);
    program.wait_until_accepting(&folder.join("qmp"));
    let listed = folder.run("qmp qmp --list blockdev-del");
    assert_eq!(listed.assert_success(), "blockdev-del node-name=str\n");
    let tables = folder.run("info qmp");
    assert!(tables.assert_success().contains("null-co"), "{tables:?}");
    assert_eq!(printed_json(&folder.run("qmp qmp quit")), json!({}));
    program.ended().assert_success();
}
