//! `blockplane qmp` and `blockplane info` on a real daemon.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::process::{Folder, Process, ProcessOutput, words};
use crate::{MONITOR, start_with_disk};

const DISK: &str = "--object iothread,id=io0 --blockdev file,node-name=d,filename=disk \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,num-queues=2,iothread=io0";

/// What was printed, as JSON.
fn printed_json(ended: &ProcessOutput) -> Value {
    serde_json::from_str(ended.assert_success()).unwrap()
}

#[test]
fn qmp_command_queries_and_changes_a_daemon() {
    let (folder, program, mut client) = start_with_disk(DISK);
    let export = "qmp qmp block-export-add type=vhost-user-blk id=f node-name=d addr.type=unix addr.path=f.sock";
    for done in [
        "qmp qmp qom-set path=/objects/io0 property=poll-max-ns value=5",
        "qmp qmp blockdev-add driver=file node-name=d2 filename=disk cache.direct=false read-only=true locking=off",
        &format!("{export} serial=\"1001\""),
        "qmp qmp block-export-del id=f",
    ] {
        assert_eq!(printed_json(&folder.run(done)), json!({}));
    }
    assert_eq!(client.execute("query-iothreads")[0]["poll-max-ns"], 5);
    assert_eq!(client.node("d2")["cache"]["direct"], false);
    let request = json!({"execute": "blockdev-del", "arguments": {"node-name": "d2"}}).to_string();
    let verbatim = Process::spawn(folder.command(["qmp", "qmp", &request])).ended();
    assert_eq!(printed_json(&verbatim), json!({}));
    assert_eq!(client.execute("query-named-block-nodes")[1], Value::Null);

    let unquoted = ["'serial', expected: string", "write 'serial=\"1001\"'"];
    for (failed, words) in [
        (&*format!("{export} serial=1001"), &unquoted[..]),
        (
            "qmp qmp blockdev-del node-name=d",
            &["GenericError: ", "in use"],
        ),
        (
            "qmp qmp nope",
            &["CommandNotFound: The command nope has not been found"],
        ),
        ("qmp e.sock query-version", &["e.sock", "vhost-user socket"]),
        ("info nowhere", &["there is no socket nowhere", "--monitor"]),
        (
            "qmp qmp --list nope",
            &["no command's name contains 'nope'"],
        ),
    ] {
        folder.run(failed).assert_fails_naming(words);
    }
    let all = folder.run("qmp qmp --list");
    let lines: Vec<&str> = all.assert_success().lines().collect();
    assert!(lines.contains(&"quit"), "{lines:?}");
    let some = folder.run("qmp qmp --list export-del");
    let listed = "block-export-del id=str [mode=safe|hard]\n";
    assert_eq!(some.assert_success(), listed);
    program.stop();
}

#[test]
fn info_shows_tables_and_scripts_stop_at_the_first_error() {
    let (folder, program, mut client) = start_with_disk(DISK);
    let tables = folder.run("info qmp");
    let lines = tables.assert_success().lines();
    let rows: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect())
        .collect();
    let row = |heading: &str| {
        let mut rows = rows.iter();
        rows.find(|row| row.first() == Some(&heading)).unwrap();
        rows.next().unwrap()
    };
    assert_eq!(row("EXPORT")[..4], ["e", "d", "1", "MiB"]);
    assert_eq!(row("EXPORT").last(), Some(&"e.sock"));
    assert_eq!(row("NODE")[..4], ["d", "file", "1", "MiB"]);
    assert_eq!(row("IOTHREAD")[0], "io0");
    let json = printed_json(&folder.run("info qmp nodes exports --json"));
    assert_eq!(json["nodes"][0]["node-name"], "d");
    assert_eq!(json["exports"][0]["socket"], "e.sock");
    assert!(json.get("iothreads").is_none());

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
    bad.assert_fails_naming(&["object 'b' not found (line 1: object-del id=b)"]);
    assert_eq!(client.execute("query-iothreads")[1]["id"], "a");
    program.stop();
}

#[test]
fn qmp_events_prints_events_until_the_daemon_ends() {
    let (folder, program, mut client) = start_with_disk(DISK);
    let command = folder.command(words("qmp qmp query-version --events"));
    let watcher = Process::spawn(command);
    // It is connected when it has its answer.
    eventually("an answer", || watcher.stdout().lines().count() == 1);
    client.execute(
        "block-export-del id=e
         quit",
    );
    program.ended().assert_success();
    let ended = watcher.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("closed the connection"), "{ended:?}");
    let event: Value = serde_json::from_str(ended.stdout.lines().nth(1).unwrap()).unwrap();
    assert_eq!(event["event"], "BLOCK_EXPORT_DELETED");
    assert_eq!(event["data"]["id"], "e");
}

/// The commands work with any QMP monitor.
#[test]
fn operator_commands_work_with_qemu_storage_daemon() {
    if !test_support::report::installed("qemu-storage-daemon") {
        return;
    }
    let folder = Folder::new();
    let line = format!("--blockdev null-co,node-name=n,size=1048576 {MONITOR}");
    let program = Process::spawn_qemu_storage_daemon(&folder, &line);
    let listed = folder.run("qmp qmp --list blockdev-del");
    assert_eq!(listed.assert_success(), "blockdev-del node-name=str\n");
    let tables = folder.run("info qmp");
    assert!(tables.assert_success().contains("null-co"), "{tables:?}");
    assert_eq!(printed_json(&folder.run("qmp qmp quit")), json!({}));
    program.ended().assert_success();
}
