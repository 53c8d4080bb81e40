//! Disks grow and shrink while guests use them.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::client::Client;
use crate::guest::{BLOCK, Guest, IN, OUT, SLOTS};
use crate::process::{Folder, Process};
use crate::start;

const MIB: u64 = 1 << 20;
/// The status of a request that was refused.
const IOERR: u8 = 1;
/// `MQ`, `CONFIG`.
const CONFIG: u64 = 1 | 1 << 9;
/// `REPLY_ACK`.
const REPLY_ACK: u64 = 1 << 3;

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on";

/// A disk of 1 MiB that is served, and its guest.
fn serve(folder: &Folder, line: &str) -> (Process, Client, Guest) {
    folder.image("disk", MIB);
    let (program, client) = start(folder, line);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    (program, client, guest)
}

fn resize(client: &mut Client, bytes: u64) {
    client.done("block_resize", json!({"node-name": "d", "size": bytes}));
}

/// Asks for the last block of a disk of so many bytes, and says what came of it.
fn last_block(guest: &mut Guest, kind: u32, bytes: u64) -> u8 {
    guest.ask(0, 0, kind, bytes / BLOCK as u64 - 1, 7);
    guest.watch(0, 0);
    guest.status(0, 0)
}

/// The next message on a back-end's channel: its request and flags; it has no payload.
fn config_change(channel: &mut UnixStream) -> [u32; 2] {
    let mut message = [0; 12];
    channel.read_exact(&mut message).expect("a message");
    assert_eq!(message[8..], [0; 4], "its size");
    [0, 4].map(|at| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap()))
}

#[test]
fn resize_notifies_the_guest_and_moves_the_end() {
    for protocol_features in [CONFIG, CONFIG | REPLY_ACK] {
        let folder = Folder::new();
        let (program, mut client, mut guest) = serve(&folder, LINE);
        let mut channel = guest.listen(protocol_features);
        assert_eq!(last_block(&mut guest, IN, 2 * MIB), IOERR);
        resize(&mut client, 2 * MIB);
        // `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, with the version and no wish for an answer.
        assert_eq!(config_change(&mut channel), [2, 1]);
        assert_eq!(guest.capacity(), 2 * MIB);
        assert_eq!(last_block(&mut guest, OUT, 2 * MIB), 0);
        resize(&mut client, MIB);
        assert_eq!(config_change(&mut channel), [2, 1]);
        assert_eq!(guest.capacity(), MIB);
        for kind in [IN, OUT] {
            assert_eq!(last_block(&mut guest, kind, 2 * MIB), IOERR);
            assert_eq!(last_block(&mut guest, kind, MIB), 0);
        }
        // Nothing changes, and nothing is said.
        resize(&mut client, MIB);
        resize(&mut client, 3 * MIB);
        assert_eq!(config_change(&mut channel), [2, 1]);
        channel.set_nonblocking(true).unwrap();
        assert!(channel.read(&mut [0]).is_err());
        assert_eq!(fs::metadata(folder.join("disk")).unwrap().len(), 3 * MIB);
        program.stop();
    }
}

#[test]
fn resize_without_backend_channel_is_visible_in_the_config() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = serve(&folder, LINE);
    // A channel without a configuration space is for other messages.
    let channel = guest.listen(REPLY_ACK);
    resize(&mut client, 2 * MIB);
    channel.set_nonblocking(true).unwrap();
    assert!((&channel).read(&mut [0]).is_err());
    assert_eq!(last_block(&mut guest, OUT, 2 * MIB), 0);
    drop(guest);
    let guest = Guest::connect(&folder.join("e.sock"), 1);
    resize(&mut client, 4 * MIB);
    assert_eq!(guest.capacity(), 4 * MIB);
    program.stop();
}

#[test]
fn unread_backend_channel_does_not_block_a_resize() {
    let folder = Folder::new();
    let (program, mut client, mut guest) = serve(&folder, LINE);
    let channel = guest.listen(CONFIG | REPLY_ACK);
    // More than fit its socket.
    for round in 0..500 {
        resize(&mut client, (1 + round % 2) * MIB);
        assert_eq!(last_block(&mut guest, OUT, MIB), 0);
    }
    drop(channel);
    // A process that another test starts has a copy of it for a moment.
    let closed = || program.stderr().contains("has closed its backend channel");
    for round in 0..10_000 {
        resize(&mut client, (1 + round % 2) * MIB);
        if closed() {
            break;
        }
    }
    resize(&mut client, 3 * MIB);
    assert_eq!(guest.capacity(), 3 * MIB);
    assert_eq!(last_block(&mut guest, OUT, 3 * MIB), 0);
    let log = program.stop().stderr;
    assert!(log.contains("does not read its backend channel"), "{log}");
    assert!(log.contains("has closed its backend channel"), "{log}");
}

/// A request that was taken is done before the file is cut: if not, a write would make it longer again.
#[test]
fn shrinking_under_load_keeps_data_below_the_new_end() {
    for aio in ["threads", "native", "io_uring"] {
        let folder = Folder::new();
        let line = LINE.replace("filename=disk", &format!("filename=disk,aio={aio}"));
        let (program, mut client, mut guest) = serve(&folder, &line);
        let half = MIB / 2 / BLOCK as u64;
        for round in 0..200_u32 {
            let byte = u8::try_from(1 + round % 250).unwrap();
            resize(&mut client, MIB);
            // Every other one behind the new end.
            let block = |slot: usize| slot as u64 + (slot as u64 % 2) * half;
            for slot in 0..SLOTS {
                guest.add(0, slot, OUT, block(slot), byte);
            }
            guest.submit(0);
            resize(&mut client, MIB / 2);
            for slot in 0..SLOTS {
                guest.watch(0, slot);
                let status = guest.status(0, slot);
                assert!(status == 0 || (status == IOERR && slot % 2 == 1), "{slot}");
            }
            let disk = OpenOptions::new().read(true).open(folder.join("disk"));
            let disk = disk.unwrap();
            assert_eq!(disk.metadata().unwrap().len(), MIB / 2, "{aio}, {round}");
            for slot in (0..SLOTS).step_by(2) {
                let mut found = [0; BLOCK];
                let offset = block(slot) * BLOCK as u64;
                disk.read_exact_at(&mut found, offset).unwrap();
                assert_eq!(found, [byte; BLOCK], "{aio}, {round}, {slot}");
            }
        }
        program.stop();
    }
}

#[test]
fn exports_of_raw_windows_follow_a_resize() {
    let folder = Folder::new();
    let line = "--blockdev file,node-name=d,filename=disk \
        --blockdev raw,node-name=tail,file=d,offset=4096 \
        --export vhost-user-blk,id=e,node-name=tail,addr.type=unix,addr.path=e.sock,writable=on";
    let (program, mut client, mut guest) = serve(&folder, line);
    resize(&mut client, 2 * MIB + 4096);
    assert_eq!(guest.capacity(), 2 * MIB);
    client.done(
        "block_resize",
        json!({"node-name": "tail", "size": 4 * MIB}),
    );
    assert_eq!(guest.capacity(), 4 * MIB);
    assert_eq!(last_block(&mut guest, OUT, 4 * MIB), 0);
    let part = json!({"driver": "raw", "node-name": "part", "file": "d", "offset": 0, "size": MIB});
    client.done("blockdev-add", part);
    let cut = client.fails("block_resize", json!({"node-name": "d", "size": MIB - 512}));
    assert!(
        cut.starts_with("node 'part' shows bytes 0 to 1048576"),
        "{cut}"
    );
    // Some file systems take files that large: tmpfs, XFS.
    let size = 1_u64 << 62;
    let probe = fs::File::create(folder.join("probe")).unwrap();
    if probe.set_len(size).is_err() {
        let large = client.fails("block_resize", json!({"node-name": "tail", "size": size}));
        assert!(large.starts_with("Could not resize file"), "{large}");
    }
    assert_eq!(guest.capacity(), 4 * MIB);
    assert_eq!(last_block(&mut guest, IN, 4 * MIB), 0);
    program.stop();
}

/// Nothing could open it again.
#[test]
fn disk_cannot_shrink_below_a_sector() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, mut client) = start(&folder, LINE);
    for size in [0, -1] {
        let error = client.fails("block_resize", json!({"node-name": "d", "size": size}));
        assert!(error.contains("'size' expects a >0 size"), "{error}");
    }
    assert_eq!(fs::metadata(folder.join("disk")).unwrap().len(), MIB);
    resize(&mut client, 512);
    program.stop();
}
