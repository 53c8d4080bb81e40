//! Disks grow and shrink while guests use them.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver, SLOTS};
use crate::{MIB, start_with_disk};

/// The status of a request that was refused.
const IOERR: u8 = 1;
/// `MQ`, `CONFIG`.
const CONFIG: u64 = 1 | 1 << 9;
/// `REPLY_ACK`.
const REPLY_ACK: u64 = 1 << 3;

const LINE: &str = "--blockdev file,node-name=d,filename=disk \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e.sock,writable=on";

/// A disk of 1 MiB that is served, and its guest.
fn serve(line: &str) -> (Folder, Process, Client, RequestDriver) {
    let (folder, program, client) = start_with_disk(line);
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    (folder, program, client, guest)
}

fn resize(client: &mut Client, bytes: u64) {
    client.execute(&format!("block_resize node-name=d size={bytes}"));
}

/// Asks for the last block of a disk of so many bytes, and says what came of it.
fn last_block(guest: &mut RequestDriver, kind: u32, bytes: u64) -> u8 {
    guest.status_of(0, kind, bytes / BLOCK as u64 - 1, 7)
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
        let (folder, program, mut client, mut guest) = serve(LINE);
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
    let (folder, program, mut client, mut guest) = serve(LINE);
    // A channel without a configuration space is for other messages.
    let channel = guest.listen(REPLY_ACK);
    resize(&mut client, 2 * MIB);
    channel.set_nonblocking(true).unwrap();
    assert!((&channel).read(&mut [0]).is_err());
    assert_eq!(last_block(&mut guest, OUT, 2 * MIB), 0);
    drop(guest);
    let guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    resize(&mut client, 4 * MIB);
    assert_eq!(guest.capacity(), 4 * MIB);
    program.stop();
}

#[test]
fn unread_backend_channel_does_not_block_a_resize() {
    let (_folder, program, mut client, mut guest) = serve(LINE);
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
        let line = LINE.replace("filename=disk", &format!("filename=disk,aio={aio}"));
        let (folder, program, mut client, mut guest) = serve(&line);
        let half = MIB / 2 / BLOCK as u64;
        for round in 0..200_u32 {
            let byte = u8::try_from(1 + round % 250).unwrap();
            resize(&mut client, MIB);
            // Every other one behind the new end.
            let block = |slot: usize| slot as u64 + (slot as u64 % 2) * half;
            guest.ask_all(0, OUT, (0..SLOTS).map(|slot| (block(slot), byte)));
            resize(&mut client, MIB / 2);
            for (slot, status) in guest.watch_all(0).into_iter().enumerate() {
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
    let line = "--blockdev file,node-name=d,filename=disk \
        --blockdev raw,node-name=tail,file=d,offset=4096 \
        --export vhost-user-blk,id=e,node-name=tail,addr.type=unix,addr.path=e.sock,writable=on";
    let (_folder, program, mut client, mut guest) = serve(line);
    resize(&mut client, 2 * MIB + 4096);
    assert_eq!(guest.capacity(), 2 * MIB);
    client.execute("block_resize node-name=tail size=4194304");
    assert_eq!(guest.capacity(), 4 * MIB);
    assert_eq!(last_block(&mut guest, OUT, 4 * MIB), 0);
    client.execute("blockdev-add driver=raw node-name=part file=d offset=0 size=1048576");
    client.assert_errors(
        "block_resize node-name=d size=1048064 => node 'part' shows bytes 0 to 1048576",
    );
    // Nothing could open a disk of less than a sector again.
    client.assert_errors(
        "block_resize node-name=d size=0 => 'size' expects a >0 size
         block_resize node-name=d size=-1 => 'size' expects a >0 size",
    );
    assert_eq!(guest.capacity(), 4 * MIB);
    assert_eq!(last_block(&mut guest, IN, 4 * MIB), 0);
    program.stop();
}
