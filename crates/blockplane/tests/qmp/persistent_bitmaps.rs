//! Persistent dirty bitmaps: there after an orderly end, inconsistent after a crash, never silently incomplete.

use std::fs::{self, File};

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::request_driver::{OUT, RequestDriver};
use test_support::verifying::blocks::BLOCK;

use crate::bitmaps;
use crate::client::Client;
use crate::process::{Folder, Process};
use crate::{MIB, start};

const LINE: &str = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off,bitmap-file=bits \
    --export vhost-user-blk,id=e,node-name=d,writable=on,addr.type=unix,addr.path=e.sock";

/// Adds a persistent bitmap of the disk, up to its name.
const ADD: &str = "block-dirty-bitmap-add node=d granularity=4096 persistent=true name";

/// The daemon on the disk and the bitmaps in a folder.
fn start_on(folder: &Folder) -> (Process, Client, RequestDriver) {
    let (program, client) = start(folder, LINE);
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    (program, client, guest)
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.image("disk.img", MIB);
    folder
}

fn write(guest: &mut RequestDriver, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert_eq!(guest.status_of(0, OUT, block, 1), 0);
    }
}

fn crash(program: Process) {
    program.signal(Signal::KILL);
    program.ended();
}

fn bitmaps(client: &mut Client) -> Vec<Value> {
    bitmaps::bitmaps(client, "d")
}

/// Name, dirty blocks, and whether it records, of each bitmap.
fn summary(client: &mut Client) -> Value {
    let summary = |bitmap: &Value| {
        let blocks = bitmap["count"].as_u64().unwrap() / BLOCK as u64;
        json!([bitmap["name"], blocks, bitmap["recording"]])
    };
    bitmaps(client).iter().map(summary).collect()
}

/// Starts on the disk, expects its only bitmap to be inconsistent, and stops.
#[track_caller]
fn expect_inconsistent(folder: &Folder) {
    let (program, mut client, _) = start_on(folder);
    assert_eq!(bitmaps(&mut client)[0]["inconsistent"], true);
    program.stop();
}

/// Removes the export, which has a front-end.
fn remove_export(client: &mut Client) {
    client.execute("block-export-del id=e mode=hard");
    client.event("BLOCK_EXPORT_DELETED", "e");
}

/// The file of bitmaps is not opened as a disk.
#[track_caller]
fn expect_locked_file(client: &mut Client) {
    client.assert_errors(
        "blockdev-add driver=file node-name=x filename=bits => failed to get
         blockdev-add driver=file node-name=x filename=bits read-only=true => failed to get",
    );
}

#[test]
fn persistent_bitmaps_record_again_after_a_restart_from_the_first_request_on() {
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    expect_locked_file(&mut client);
    client.execute(&format!(
        "{ADD}=kept
         {ADD}=stopped
         block-dirty-bitmap-add node=d name=gone"
    ));
    // It is another file now.
    expect_locked_file(&mut client);
    write(&mut guest, 0..3);
    client.execute("block-dirty-bitmap-disable node=d name=stopped");
    write(&mut guest, 10..12);
    program.stop();
    let (program, mut client, mut guest) = start_on(&folder);
    write(&mut guest, 20..24);
    let expected = json!([["stopped", 3, false], ["kept", 9, true]]);
    assert_eq!(summary(&mut client), expected);
    let mut found = bitmaps(&mut client).into_iter();
    assert!(found.all(|bitmap| bitmap["persistent"] == true));
    // The node is closed in an orderly way as well.
    drop(guest);
    remove_export(&mut client);
    client.execute(
        "blockdev-del node-name=d
         blockdev-add driver=file node-name=d filename=disk.img bitmap-file=bits",
    );
    assert_eq!(summary(&mut client), expected);
    program.stop();
}

#[test]
fn persistent_bitmaps_are_inconsistent_after_a_crash_until_they_are_removed() {
    const UNUSABLE: &str = "Bitmap 'a' is inconsistent and cannot be used";
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    client.execute(&format!("{ADD}=a"));
    write(&mut guest, 0..3);
    crash(program);
    // Also after an orderly end: it has missed nothing since, but something before.
    expect_inconsistent(&folder);
    let (program, mut client, mut guest) = start_on(&folder);
    let found = bitmaps(&mut client);
    assert_eq!(found[0]["inconsistent"], true);
    assert_eq!(found[0]["recording"], false);
    client.execute(&format!("{ADD}=b"));
    client.assert_errors(&format!(
        "block-dirty-bitmap-enable node=d name=a => {UNUSABLE}
         block-dirty-bitmap-disable node=d name=a => {UNUSABLE}
         block-dirty-bitmap-clear node=d name=a => {UNUSABLE}
         block-dirty-bitmap-merge node=d target=b bitmaps.0=a => {UNUSABLE}"
    ));
    client.execute("block-dirty-bitmap-remove node=d name=a");
    write(&mut guest, 0..5);
    program.stop();
    let (program, mut client, _) = start_on(&folder);
    assert_eq!(summary(&mut client), json!([["b", 5, true]]));
    assert_eq!(bitmaps(&mut client)[0].get("inconsistent"), None);
    program.stop();
}

/// Otherwise the next incremental backup would lack what was written meanwhile.
#[test]
fn bitmaps_of_a_disk_that_changed_without_them_are_inconsistent() {
    let image = |folder: &Folder| File::options().write(true).open(folder.join("disk.img"));
    let crashed_before_a_write = |folder: &Folder| crash(start_on(folder).0);
    let resized = |folder: &Folder| image(folder).unwrap().set_len(2 * MIB).unwrap();
    let written = |folder: &Folder| {
        let (program, _) = start(folder, &LINE.replace(",bitmap-file=bits", ""));
        let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
        write(&mut guest, 5..6);
        program.stop();
    };
    let replaced_by_a_copy = |folder: &Folder| {
        let path = folder.join("disk.img");
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        fs::copy(&path, folder.join("copy.img")).unwrap();
        fs::rename(folder.join("copy.img"), &path).unwrap();
        image(folder).unwrap().set_modified(changed).unwrap();
    };
    let changes: [&dyn Fn(&Folder); 4] = [
        &crashed_before_a_write,
        &resized,
        &written,
        &replaced_by_a_copy,
    ];
    for change in changes {
        let folder = folder();
        let (program, mut client, mut guest) = start_on(&folder);
        client.execute(&format!("{ADD}=a"));
        write(&mut guest, 0..3);
        program.stop();
        change(&folder);
        expect_inconsistent(&folder);
    }
}

#[test]
fn damaged_foreign_and_shared_files_of_bitmaps_are_refused_with_the_reason() {
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    client.execute(&format!("{ADD}=a"));
    write(&mut guest, 0..3);
    program.stop();
    let bits = folder.join("bits");
    let saved = fs::read(&bits).unwrap();
    let mut changed = saved.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (content, why) in [
        (&saved[..saved.len() - 1], "it is damaged"),
        (&saved[..20], "it is damaged"),
        (&changed[..], "it is damaged"),
        (b"another file".as_slice(), "it is no file of dirty bitmaps"),
    ] {
        fs::write(&bits, content).unwrap();
        let ended = folder.run(LINE);
        ended.assert_fails_naming(&["node 'd'", "bitmap-file", "bits", why]);
        assert_eq!(fs::read(&bits).unwrap(), content, "it stays");
    }
    fs::write(&bits, &saved).unwrap();
    folder.image("other.img", MIB);
    let (program, mut client, _) = start_on(&folder);
    let why =
        client.error_of("blockdev-add driver=file node-name=o filename=other.img bitmap-file=bits");
    assert!(why.contains("is in use by another disk"), "{why}");
    remove_export(&mut client);
    let why = client.error_of("blockdev-set-active node-name=d active=false");
    assert!(why.contains("has a bitmap-file"), "{why}");
    assert_eq!(summary(&mut client), json!([["a", 3, true]]));
    program.stop();
}
