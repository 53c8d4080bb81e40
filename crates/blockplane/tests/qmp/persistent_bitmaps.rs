//! Persistent dirty bitmaps: there after an orderly end, inconsistent after a crash, never silently incomplete.

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::guest::{Guest, OUT};
use test_support::verifying::blocks::BLOCK;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::start;

const LINE: &str = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off,bitmap-file=bits \
    --export vhost-user-blk,id=e,node-name=d,writable=on,addr.type=unix,addr.path=e.sock";

fn new_bitmap(name: &str, persistent: bool) -> Value {
    json!({"node": "d", "name": name, "granularity": BLOCK, "persistent": persistent})
}

fn bitmap(name: &str) -> Value {
    json!({"node": "d", "name": name})
}

fn bitmaps(client: &mut Client) -> Vec<Value> {
    let nodes = client.done("query-named-block-nodes", json!({}));
    let bitmaps = nodes[0].get("dirty-bitmaps").and_then(Value::as_array);
    bitmaps.cloned().unwrap_or_default()
}

fn dirty_blocks(bitmap: &Value) -> u64 {
    bitmap["count"].as_u64().unwrap() / BLOCK as u64
}

/// The daemon on the disk and the bitmaps in a folder.
fn start_on(folder: &Folder) -> (Process, Client, Guest) {
    let (program, client) = start(folder, LINE);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    (program, client, guest)
}

fn write(guest: &mut Guest, blocks: std::ops::Range<u64>) {
    for block in blocks {
        guest.ask(0, 0, OUT, block, 1);
        guest.watch(0, 0);
        assert_eq!(guest.status(0, 0), 0);
    }
}

fn crash(program: Process) {
    program.signal(Signal::KILL);
    program.ended();
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    folder
}

#[test]
fn file_of_bitmaps_is_not_opened_as_a_disk() {
    let folder = folder();
    let (program, mut client, _guest) = start_on(&folder);
    for is_replaced in [false, true] {
        if is_replaced {
            client.done("block-dirty-bitmap-add", new_bitmap("b", true));
        }
        for read_only in [false, true] {
            let node = json!({"driver": "file", "node-name": "x", "filename": "bits", "read-only": read_only});
            let refused = client.fails("blockdev-add", node);
            assert!(refused.contains("failed to get"), "{refused}");
        }
    }
    assert_eq!(bitmaps(&mut client).len(), 1);
    program.stop();
}

#[test]
fn persistent_bitmaps_record_again_after_a_restart_from_the_first_request_on() {
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    client.done("block-dirty-bitmap-add", new_bitmap("kept", true));
    client.done("block-dirty-bitmap-add", new_bitmap("stopped", true));
    client.done("block-dirty-bitmap-add", new_bitmap("gone", false));
    write(&mut guest, 0..3);
    client.done("block-dirty-bitmap-disable", bitmap("stopped"));
    write(&mut guest, 10..12);
    program.stop();
    let (program, mut client, mut guest) = start_on(&folder);
    write(&mut guest, 20..24);
    let found = bitmaps(&mut client);
    let names: Vec<_> = found
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["stopped", "kept"]);
    assert_eq!(found.iter().map(dirty_blocks).collect::<Vec<_>>(), [3, 9]);
    assert!(found.iter().all(|it| it["persistent"] == true));
    assert_eq!(
        (&found[0]["recording"], &found[1]["recording"]),
        (&json!(false), &json!(true))
    );
    // The node is closed in an orderly way as well.
    drop(guest);
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "e");
    client.done("blockdev-del", bitmap_node());
    let options =
        json!({"driver": "file", "node-name": "d", "filename": "disk.img", "bitmap-file": "bits"});
    client.done("blockdev-add", options);
    assert_eq!(
        bitmaps(&mut client)
            .iter()
            .map(dirty_blocks)
            .collect::<Vec<_>>(),
        [3, 9]
    );
    program.stop();
}

fn bitmap_node() -> Value {
    json!({"node-name": "d"})
}

#[test]
fn persistent_bitmaps_are_inconsistent_after_a_crash_until_they_are_removed() {
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    client.done("block-dirty-bitmap-add", new_bitmap("a", true));
    write(&mut guest, 0..3);
    crash(program);
    // Also after an orderly end: it has missed nothing since, but something before.
    let (program, _, _) = start_on(&folder);
    program.stop();
    let (program, mut client, mut guest) = start_on(&folder);
    let found = bitmaps(&mut client);
    assert_eq!(found[0]["inconsistent"], true);
    assert_eq!(found[0]["recording"], false);
    for command in ["enable", "disable", "clear"] {
        let why = client.fails(&format!("block-dirty-bitmap-{command}"), bitmap("a"));
        assert_eq!(why, "Bitmap 'a' is inconsistent and cannot be used");
    }
    client.done("block-dirty-bitmap-add", new_bitmap("b", true));
    let merge = json!({"node": "d", "target": "b", "bitmaps": ["a"]});
    let why = client.fails("block-dirty-bitmap-merge", merge);
    assert_eq!(why, "Bitmap 'a' is inconsistent and cannot be used");
    client.done("block-dirty-bitmap-remove", bitmap("a"));
    write(&mut guest, 0..5);
    program.stop();
    let (program, mut client, _) = start_on(&folder);
    let found = bitmaps(&mut client);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (dirty_blocks(&found[0]), &found[0]["recording"]),
        (5, &json!(true))
    );
    assert_eq!(found[0].get("inconsistent"), None);
    program.stop();
}

/// A crash before anything is written counts: it is marked in use before.
#[test]
fn file_of_bitmaps_is_in_use_from_the_start_on() {
    let folder = folder();
    let (program, mut client, _) = start_on(&folder);
    client.done("block-dirty-bitmap-add", new_bitmap("a", true));
    program.stop();
    let (program, _, _) = start_on(&folder);
    crash(program);
    let (program, mut client, _) = start_on(&folder);
    assert_eq!(bitmaps(&mut client)[0]["inconsistent"], true);
    program.stop();
}

#[test]
fn bitmaps_of_a_disk_that_another_program_resized_are_inconsistent() {
    let folder = folder();
    let (program, mut client, _) = start_on(&folder);
    client.done("block-dirty-bitmap-add", new_bitmap("a", true));
    program.stop();
    let disk = std::fs::File::options()
        .write(true)
        .open(folder.join("disk.img"));
    disk.unwrap().set_len(2 << 20).unwrap();
    let (program, mut client, _) = start_on(&folder);
    assert_eq!(bitmaps(&mut client)[0]["inconsistent"], true);
    program.stop();
}

/// Otherwise the next incremental backup would lack what was written meanwhile.
#[test]
fn bitmaps_of_a_disk_that_was_written_without_them_or_replaced_are_inconsistent() {
    for is_replaced in [false, true] {
        let folder = folder();
        let (program, mut client, mut guest) = start_on(&folder);
        client.done("block-dirty-bitmap-add", new_bitmap("a", true));
        write(&mut guest, 0..3);
        program.stop();
        let image = folder.join("disk.img");
        if is_replaced {
            std::fs::copy(&image, folder.join("copy.img")).unwrap();
            let copy = std::fs::File::options()
                .write(true)
                .open(folder.join("copy.img"));
            let changed = std::fs::metadata(&image).unwrap().modified().unwrap();
            copy.unwrap().set_modified(changed).unwrap();
            std::fs::rename(folder.join("copy.img"), &image).unwrap();
        } else {
            let (program, _) = start(&folder, &LINE.replace(",bitmap-file=bits", ""));
            let mut guest = Guest::connect(&folder.join("e.sock"), 1);
            write(&mut guest, 5..6);
            drop(guest);
            program.stop();
        }
        let (program, mut client, _) = start_on(&folder);
        assert_eq!(bitmaps(&mut client)[0]["inconsistent"], true);
        program.stop();
    }
}

#[test]
fn damaged_foreign_and_shared_files_of_bitmaps_are_refused_with_the_reason() {
    let folder = folder();
    let (program, mut client, mut guest) = start_on(&folder);
    client.done("block-dirty-bitmap-add", new_bitmap("a", true));
    write(&mut guest, 0..3);
    program.stop();
    let saved = std::fs::read(folder.join("bits")).unwrap();
    let mut changed = saved.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (content, why) in [
        (&saved[..saved.len() - 1], "it is damaged"),
        (&saved[..20], "it is damaged"),
        (&changed[..], "it is damaged"),
        (b"another file".as_slice(), "it is no file of dirty bitmaps"),
    ] {
        std::fs::write(folder.join("bits"), content).unwrap();
        folder
            .run(LINE)
            .assert_fails_naming(&["node 'd'", "bitmap-file", "bits", why]);
        assert_eq!(
            std::fs::read(folder.join("bits")).unwrap(),
            content,
            "it stays"
        );
    }
    std::fs::write(folder.join("bits"), &saved).unwrap();
    folder.image("other.img", 1 << 20);
    let (program, mut client, _) = start_on(&folder);
    let other =
        json!({"driver": "file", "node-name": "o", "filename": "other.img", "bitmap-file": "bits"});
    let why = client.fails("blockdev-add", other);
    assert!(why.contains("is in use by another disk"), "{why}");
    let inactive = json!({"node-name": "d", "active": false});
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    client.event("BLOCK_EXPORT_DELETED", "e");
    let why = client.fails("blockdev-set-active", inactive);
    assert!(why.contains("has a bitmap-file"), "{why}");
    assert_eq!(dirty_blocks(&bitmaps(&mut client)[0]), 3);
    program.stop();
}
