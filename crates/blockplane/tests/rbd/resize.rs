//! Images grow and shrink while guests use them, by `rbd resize` and by `block_resize`.

use std::io::Read;
use std::os::unix::net::UnixStream;

use serde_json::json;
use test_support::ceph::Cluster;
use test_support::deadline::eventually;

use crate::disk::{Disk, OBJECT, SOCKET, export_of};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::load::Load;
use crate::process::Folder;
use crate::{IOERR, MIB, start};

/// `MQ`, `CONFIG`.
const CONFIG: u64 = 1 | 1 << 9;

/// Another client resizes the image.
fn rbd_resize(disk: &Disk, bytes: u64) {
    let size = format!("{bytes}B");
    let args = [
        "resize",
        "--no-progress",
        "--allow-shrink",
        "--size",
        &size,
        disk.name,
    ];
    disk.cluster.rbd(args);
}

/// Asks for the last block of a disk of so many bytes, and returns the status.
fn last_block(guest: &mut Guest, kind: u32, bytes: u64) -> u8 {
    guest.ask(0, 0, kind, bytes / BLOCK as u64 - 1, 7);
    guest.watch(0, 0);
    guest.status(0, 0)
}

/// Waits for the message that the configuration has changed (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`).
fn config_change(channel: &mut UnixStream) {
    let mut message = [0; 12];
    channel.read_exact(&mut message).expect("a message");
    assert_eq!(message[..4], 2_u32.to_ne_bytes());
}

#[test]
fn resize_by_another_client_reaches_the_guest() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "resized");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    let mut channel = guest.listen(CONFIG);
    // Without the lock, and with it: its holder resizes the image for the tool.
    for bytes in [2 * MIB, MIB, 4 * MIB] {
        rbd_resize(&disk, bytes);
        config_change(&mut channel);
        assert_eq!(guest.capacity(), bytes);
        for kind in [OUT, IN] {
            assert_eq!(last_block(&mut guest, kind, bytes), 0);
            assert_eq!(last_block(&mut guest, kind, bytes + BLOCK as u64), IOERR);
        }
    }
    program.stop();
    assert_eq!(disk.content().len() as u64, 4 * MIB);
}

/// librbd watches images that are open for writing only.
#[test]
fn image_that_is_only_read_has_its_new_size_when_it_is_reopened() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "read-resized");
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,{},read-only=on {}",
        disk.node(),
        export_of("d", "")
    );
    let (program, mut client) = start(&folder, &line.replace("writable=on", "writable=off"));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    rbd_resize(&disk, 2 * MIB);
    let mut node = disk.node_json("d");
    node["read-only"] = true.into();
    client.done("blockdev-reopen", json!({"options": [node]}));
    eventually("the new size", || guest.capacity() == 2 * MIB);
    assert_eq!(last_block(&mut guest, IN, 2 * MIB), 0);
    program.stop();
}

#[test]
fn block_resize_changes_the_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "block-resized");
    let folder = Folder::new();
    let (program, mut client) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    let mut channel = guest.listen(CONFIG);
    for bytes in [3 * MIB, 2 * MIB] {
        client.done("block_resize", json!({"node-name": "d", "size": bytes}));
        config_change(&mut channel);
        assert_eq!(guest.capacity(), bytes);
        assert_eq!(last_block(&mut guest, OUT, bytes), 0);
    }
    program.stop();
    assert_eq!(disk.content().len() as u64, 2 * MIB);
}

#[test]
fn image_shrinks_under_load_and_keeps_data_below_its_end() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create_with_size(cluster, "shrinking", 2 * MIB);
    let folder = Folder::new();
    let (mut program, _) = start(&folder, &disk.line_with("", ",num-queues=2"));
    // The front-end uses the first half only.
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    for bytes in [MIB, 2 * MIB, MIB + BLOCK as u64, MIB] {
        load.run(200);
        load.fill();
        rbd_resize(&disk, bytes);
    }
    load.run(200);
    load.drain();
    program.stop();
    load.assert_content(&disk.content());
}

#[test]
fn resize_that_would_cut_a_window_is_reported_and_the_window_stays() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "windowed");
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,{} --blockdev raw,node-name=w,file=d,offset={OBJECT},size={OBJECT} {}",
        disk.node(),
        export_of("w", "")
    );
    let (program, mut client) = start(&folder, &line);
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    assert_eq!(last_block(&mut guest, OUT, OBJECT), 0);
    let cut = client.fails("block_resize", json!({"node-name": "d", "size": OBJECT}));
    assert!(cut.starts_with("node 'w' shows bytes"), "{cut}");
    rbd_resize(&disk, OBJECT + BLOCK as u64);
    eventually("the resize is reported", || {
        let log = program.stderr();
        log.contains("a new size that is not adopted") && log.contains("node 'w' shows bytes")
    });
    assert_eq!(guest.capacity(), OBJECT);
    // There is nothing behind the end of the image, and nothing may seem to be written there.
    assert_eq!(last_block(&mut guest, OUT, OBJECT), IOERR);
    guest.request(0, OUT, 0, 3);
    // The end comes back.
    rbd_resize(&disk, 2 * MIB);
    eventually("the size is adopted", || {
        let nodes = client.done("query-named-block-nodes", json!({}));
        let mut nodes = nodes.as_array().unwrap().iter();
        let node = nodes.find(|node| node["node-name"] == "d").unwrap();
        node["image"]["virtual-size"] == 2 * MIB
    });
    assert_eq!(last_block(&mut guest, OUT, OBJECT), 0);
    guest.request(0, IN, 0, 0);
    assert_eq!(guest.data(0, 0), [3; BLOCK]);
    program.stop();
}
