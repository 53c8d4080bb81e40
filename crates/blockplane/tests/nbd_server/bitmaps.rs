//! Dirty bitmaps that exports show to their clients.

use nbd::wire::{NbdErrno, command, command_flag};
use serde_json::{Value, json};
use test_support::upgraded_daemon::Daemon;

use crate::client::Client;
use crate::clients::run_if_installed;
use crate::process::{Folder, Process, STUCK_AFTER};
use crate::raw_client::{RawClient, request};
use crate::status_client::{Ranges, StatusClient};
use crate::{MIB, SERVER, disk_line, remove_export, serve, start};

const KIB: u64 = 1 << 10;

fn bitmap(name: &str) -> Value {
    json!({"node": "d", "name": name})
}

fn add(client: &mut Client, name: &str, granularity: u64) {
    let options = format!("name={name} granularity={granularity}");
    client.execute(&format!("block-dirty-bitmap-add node=d {options}"));
}

/// A read-only export `r` of the node `d` with these bitmaps.
fn export(bitmaps: &Value) -> Value {
    json!({"type": "nbd", "id": "r", "node-name": "d", "name": "r", "bitmaps": bitmaps})
}

fn write(folder: &Folder, offset: u64, len: u32) {
    RawClient::enter(folder, "d").write(offset, len, 7);
}

/// A disk of 4 MiB whose export `r` has two bitmaps that have stopped to record: `a` is dirty from 128 to 192 KiB, `b` from 128 to
/// 129 KiB, and both in the last granule.
fn two_bitmaps() -> (Folder, Process, Client) {
    let (folder, program, mut client, mut writer) = serve(4 * MIB, "");
    add(&mut client, "a", 64 * KIB);
    add(&mut client, "b", 512);
    writer.write(128 * KIB, 1024, 7);
    writer.write(4 * MIB - 1, 1, 7);
    for name in ["a", "b"] {
        client.done("block-dirty-bitmap-disable", bitmap(name));
    }
    let mut options = export(&json!(["a", {"node": "d", "name": "b"}]));
    options["allocation-depth"] = true.into();
    client.done("block-export-add", options);
    (folder, program, client)
}

const A: [(u64, u64); 4] = [
    (128 * KIB, 0),
    (64 * KIB, 1),
    (4 * MIB - 256 * KIB, 0),
    (64 * KIB, 1),
];
const B: [(u64, u64); 4] = [
    (128 * KIB, 0),
    (KIB, 1),
    (4 * MIB - 129 * KIB - 512, 0),
    (512, 1),
];

#[test]
fn one_reply_has_the_status_of_a_range_in_all_contexts_that_were_set() {
    let (folder, program, _client) = two_bitmaps();
    let queries = [
        "qemu:dirty-bitmap:b",
        "base:allocation",
        "qemu:dirty-bitmap:a",
        "qemu:allocation-depth",
    ];
    for extended in [false, true] {
        let mut client = StatusClient::enter(&folder, "r", extended, &queries);
        let all = client.status(0, (0, 4 * MIB)).unwrap();
        assert_eq!(all.len(), 4);
        let of = |found: &[(String, Ranges)], name: &str| {
            let mut found = found.iter().filter(|(context, _)| context == name);
            let ranges = found.next().unwrap().1.clone();
            assert!(found.next().is_none(), "{name} once");
            ranges
        };
        assert_eq!(of(&all, "qemu:dirty-bitmap:a"), A);
        assert_eq!(of(&all, "qemu:dirty-bitmap:b"), B);
        assert_eq!(of(&all, "qemu:allocation-depth"), [(4 * MIB, 1)]);
        let allocation = of(&all, "base:allocation");
        assert_eq!(allocation[0].1, 3, "a hole");
        let covered: u64 = allocation.iter().map(|(len, _)| len).sum();
        assert_eq!(covered, 4 * MIB);

        // A range that begins and ends in granules, and one range of it.
        let part = (130 * KIB, 65536);
        let inside = client.status(0, part).unwrap();
        let expected = [(62 * KIB, 1), (2 * KIB, 0)];
        assert_eq!(of(&inside, "qemu:dirty-bitmap:a"), expected);
        assert_eq!(of(&inside, "qemu:dirty-bitmap:b"), [(64 * KIB, 0)]);
        let one = client.status(command_flag::REQ_ONE, part).unwrap();
        assert!(one.iter().all(|(_, ranges)| ranges.len() == 1), "{one:?}");
        assert_eq!(of(&one, "qemu:dirty-bitmap:a"), [(62 * KIB, 1)]);
        let beyond = client.status(0, (4 * MIB - 512, 1024));
        assert_eq!(beyond, Err(NbdErrno::Inval.to_wire()));
    }
    program.stop();
}

/// More than the ranges of one reply.
#[test]
fn a_bitmap_of_many_pieces_is_read_by_several_requests() {
    let (folder, program, mut client, mut writer) = serve(16 * MIB, "");
    add(&mut client, "a", 512);
    let count = 16 * MIB / 1024;
    for turn in 0..count {
        let zeroes = request(command::WRITE_ZEROES, 0, turn, (turn * 1024, 512));
        writer.send(&zeroes);
        if turn % 128 == 127 {
            for _ in 0..128 {
                assert_eq!(writer.reply(0).1, 0);
            }
        }
    }
    client.done("block-dirty-bitmap-disable", bitmap("a"));
    client.done("block-export-add", export(&json!(["a"])));
    let mut reader = StatusClient::enter(&folder, "r", true, &["qemu:dirty-bitmap:a"]);
    let (mut offset, mut ranges) = (0, 0);
    while offset < 16 * MIB {
        let left = (offset, 16 * MIB - offset);
        for (len, status) in &reader.status(0, left).unwrap()[0].1 {
            assert_eq!((*len, *status), (512, (offset / 512 + 1) % 2));
            (offset, ranges) = (offset + len, ranges + 1);
        }
    }
    assert_eq!((offset, ranges), (16 * MIB, 2 * count));
    program.stop();
}

#[test]
fn bitmaps_that_cannot_be_exported_are_refused_as_in_qemu() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    folder.image("other", 2 * MIB);
    let line = format!(
        "--object throttle-group,id=g --blockdev file,node-name=d,filename=disk --blockdev file,node-name=o,filename=other \
         --blockdev throttle,node-name=t,file=d,throttle-group=g --blockdev raw,node-name=w,file=d \
         --blockdev null-co,node-name=e,size=2M {SERVER}"
    );
    let (program, mut client) = start(&folder, &line);
    add(&mut client, "on", 65536);
    add(&mut client, "off", 65536);
    client.done("block-dirty-bitmap-disable", bitmap("off"));
    client.execute("block-dirty-bitmap-add node=o name=big disabled=true");
    // A window may show other places of the disk.
    client.assert_errors(
        "block-export-add type=nbd id=r node-name=d bitmaps.0=none => Bitmap 'none' is not found
         block-export-add type=nbd id=r node-name=d bitmaps.0=on => Enabled bitmap 'on' incompatible with readonly export
         block-export-add type=nbd id=r node-name=t bitmaps.0=on => Enabled bitmap 'on' incompatible with readonly export
         block-export-add type=nbd id=r node-name=w bitmaps.0=on => Bitmap 'on' is not found
         block-export-add type=nbd id=r node-name=d bitmaps.0.node=d bitmaps.0.name=none => Dirty bitmap 'none' not found
         block-export-add type=nbd id=r node-name=d bitmaps.0.node=none bitmaps.0.name=on => Node 'none' not found
         block-export-add type=nbd id=r node-name=d bitmaps.0.node=o bitmaps.0.name=big => Bitmap 'big' is of a disk of 2097152 bytes
         block-export-add type=nbd id=r node-name=d bitmaps.0=off bitmaps.1.node=d bitmaps.1.name=off => Bitmap 'off' is named twice",
    );
    client.execute("block-export-add type=nbd id=r node-name=t bitmaps.0=on writable=true");
    // A node stays while an export of another node shows its bitmap.
    client.execute(
        "block-export-add type=nbd id=third node-name=e bitmaps.0.node=o bitmaps.0.name=big",
    );
    client.assert_errors(
        "block-export-add type=nbd id=s node-name=d bitmaps.0.node=d bitmaps.0.name=on => Bitmap 'on' is currently in use
         blockdev-del node-name=o => Bitmap 'big' is currently in use",
    );
    remove_export(&mut client, "third");
    client.execute("blockdev-del node-name=o");
    program.stop();
}

#[test]
fn an_exported_bitmap_is_busy_until_its_clients_are_gone() {
    let (folder, program, mut client) = two_bitmaps();
    let busy = "Bitmap 'a' is currently in use by another operation and cannot be used";
    for change in ["clear", "enable", "remove"] {
        let command = format!("block-dirty-bitmap-{change}");
        assert_eq!(client.fails(&command, bitmap("a")), busy);
    }
    let queries = ["base:allocation", "qemu:dirty-bitmap:a"];
    let mut connected = StatusClient::enter(&folder, "r", false, &queries);
    connected.status(0, (0, 4096)).unwrap();
    remove_export(&mut client, "r");
    client.done("block-dirty-bitmap-clear", bitmap("a"));
    client.done("block-dirty-bitmap-remove", bitmap("b"));
    // By the older commands, and without clients.
    client.execute("nbd-server-add device=d name=old bitmap=a");
    assert_eq!(client.fails("block-dirty-bitmap-remove", bitmap("a")), busy);
    client.execute("nbd-server-remove name=old");
    client.done("block-dirty-bitmap-remove", bitmap("a"));
    program.stop();
}

/// The numbers of contexts may mean others in the new export.
#[test]
fn a_client_that_chose_contexts_of_a_replaced_export_is_disconnected() {
    let (folder, program, mut client) = two_bitmaps();
    let queries = ["qemu:dirty-bitmap:b"];
    let mut late = StatusClient::enter_after(&folder, "r", false, &queries, || {
        client.execute("block-export-del id=r");
        client.done("block-export-add", export(&json!(["a"])));
    });
    assert!(late.raw.is_closed_within(STUCK_AFTER));
    program.stop();
}

/// It takes dirty parts for holes. (nbdinfo shows bitmaps in `incremental`.)
#[test]
fn qemu_img_reads_a_bitmap() {
    let (folder, program, _client) = two_bitmaps();
    let image =
        "driver=nbd,server.type=unix,server.path=nbd,export=r,x-dirty-bitmap=qemu:dirty-bitmap:b";
    let map = ["map", "--output=json", "--image-opts", image];
    if let Some(found) = run_if_installed(&folder, "qemu-img", &map) {
        let found: Vec<Value> = serde_json::from_str(&found).unwrap();
        let dirty = found.iter().filter(|piece| piece["data"] == false);
        let dirty: Vec<_> = dirty
            .map(|piece| ["start", "length"].map(|key| piece[key].as_u64().unwrap()))
            .collect();
        assert_eq!(dirty, [[128 * KIB, KIB], [4 * MIB - 512, 512]]);
    }
    program.stop();
}

#[test]
fn a_bitmap_of_a_resized_disk_has_the_new_end() {
    let (folder, program, mut client, _) = serve(MIB, "");
    add(&mut client, "a", 65536);
    let mut options = export(&json!(["a"]));
    options["writable"] = true.into();
    client.done("block-export-add", options);
    let queries = ["qemu:dirty-bitmap:a"];
    let mut old = StatusClient::enter(&folder, "r", true, &queries);
    client.done("block_resize", json!({"node-name": "d", "size": 2 * MIB}));
    let mut new = StatusClient::enter(&folder, "r", true, &queries);
    let found = new.status(0, (0, 2 * MIB)).unwrap();
    assert_eq!(found[0].1, [(MIB, 0), (MIB, 1)]);
    let known = old.status(0, (0, MIB)).unwrap();
    assert_eq!(known[0].1, [(MIB, 0)]);
    program.stop();
}

#[test]
fn a_persistent_bitmap_is_exported_from_the_command_line_after_a_restart() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = |bitmaps: &str| {
        let line = disk_line(bitmaps);
        line.replace("filename=disk,", "filename=disk,bitmap-file=bits,")
    };
    let (program, mut client) = start(&folder, &line(""));
    client.execute("block-dirty-bitmap-add node=d name=a granularity=4096 persistent=true");
    write(&folder, 8192, 1);
    drop(client);
    assert_eq!(program.stop().code, Some(0));

    let (program, _client) = start(&folder, &line(",bitmaps.0=a"));
    write(&folder, MIB - 1, 1);
    let mut reader = StatusClient::enter(&folder, "d", false, &["qemu:dirty-bitmap:a"]);
    let found = reader.status(0, (0, MIB)).unwrap();
    let dirty = [(8192, 0), (4096, 1), (MIB - 16384, 0), (4096, 1)];
    assert_eq!(found[0].1, dirty);
    program.stop();
}

#[test]
fn an_upgrade_keeps_exported_bitmaps_in_use_with_their_bits() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let mut daemon = Daemon::start_in(folder, &disk_line(""), &[]);
    add(&mut daemon.client(), "a", 4096);
    let mut options = export(&json!(["a"]));
    options["writable"] = true.into();
    daemon.client().done("block-export-add", options);
    for turn in 1..3 {
        write(&daemon.folder, (turn - 1) * 4096, 1);
        daemon.upgrade();
        let mut reader = StatusClient::enter(&daemon.folder, "r", true, &["qemu:dirty-bitmap:a"]);
        let found = reader.status(0, (0, MIB)).unwrap();
        assert_eq!(found[0].1, [(turn * 4096, 1), (MIB - turn * 4096, 0)]);
        let mut client = daemon.client();
        let busy = client.fails("block-dirty-bitmap-clear", bitmap("a"));
        assert!(busy.contains("in use by another operation"), "{busy}");
    }
    remove_export(&mut daemon.client(), "r");
    daemon.stop();
}
