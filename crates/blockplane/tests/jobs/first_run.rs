//! First runs of `blockplane backup --incremental` that do not end: a later run must not copy only what has changed since.

use rustix::process::Signal;
use serde_json::json;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::{MIB, assert_same_content, await_progress, bitmaps, content, start};

const LINE: &str = "backup qmp disk new.img --incremental b --persistent";

const DISK: &str =
    "--blockdev file,node-name=disk,filename=disk.img,cache.direct=off,bitmap-file=bitmaps";

/// The names of the disk's bitmaps.
fn bitmap_names(client: &mut Client) -> Vec<String> {
    let bitmaps = bitmaps(client, "disk").into_iter();
    let names = bitmaps.map(|bitmap| bitmap["name"].as_str().unwrap().to_owned());
    names.collect()
}

/// The daemon, and a slow first run that copies.
fn begin_first_run(folder: &Folder) -> (Process, Client, Process) {
    std::fs::write(folder.join("disk.img"), content(8 * MIB)).unwrap();
    let (program, mut client) = start(folder, DISK);
    let line = format!("{LINE} --speed 1M");
    let command = Process::spawn(folder.command(line.split_whitespace()));
    await_progress(&mut client, 1);
    (program, client, command)
}

/// A new file is made, with a copy of all.
fn assert_next_run_copies_all(folder: &Folder, client: &mut Client) {
    let refused = folder.run(LINE);
    assert!(refused.stderr.contains("new.img exists"), "{refused:?}");
    std::fs::remove_file(folder.join("new.img")).unwrap();
    for kind in ["full backup", "incremental"] {
        let output = folder.run(LINE);
        assert!(output.assert_success().contains(kind), "{output:?}");
        assert_same_content(folder, "disk.img", "new.img");
        assert_eq!(bitmap_names(client), ["b"]);
    }
}

#[test]
fn run_after_a_killed_first_one_copies_all() {
    let folder = Folder::new();
    let (program, mut client, command) = begin_first_run(&folder);
    command.signal(Signal::KILL);
    command.ended();
    let job = client.execute("query-jobs")[0]["id"].clone();
    client.done("job-cancel", json!({"id": job}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    client.done("blockdev-del", json!({"node-name": job}));
    let temporary = job.as_str().unwrap().replace("backup", "b.unfinished");
    assert_eq!(bitmap_names(&mut client), [temporary]);
    assert_next_run_copies_all(&folder, &mut client);
    program.stop();
}

#[test]
fn run_after_a_first_one_whose_daemon_has_ended_copies_all() {
    let folder = Folder::new();
    let (program, _client, command) = begin_first_run(&folder);
    program.stop();
    assert_eq!(command.ended().code, Some(1));
    let (program, mut client) = start(&folder, DISK);
    assert_next_run_copies_all(&folder, &mut client);
    program.stop();
}
