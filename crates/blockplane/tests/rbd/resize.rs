//! Images grow and shrink while guests use them, by `rbd resize` and by `block_resize`.

use std::io::Read;
use std::os::unix::net::UnixStream;

use serde_json::json;
use test_support::deadline::eventually;
use test_support::verifying::load::VerifyingLoad;

use crate::disk::{OBJECT, SOCKET, export_of, read};
use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};
use crate::{IOERR, MIB, new_disk, serve, start};

/// `MQ`, `CONFIG`.
const CONFIG: u64 = 1 | 1 << 9;

/// The status of a request for the last block of a disk of so many bytes.
fn last_block(guest: &mut RequestDriver, kind: u32, bytes: u64) -> u8 {
    guest.status_of(0, kind, bytes / BLOCK as u64 - 1, 7)
}

/// Waits for the message that the configuration has changed (`VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`).
fn config_change(channel: &mut UnixStream) {
    let mut message = [0; 12];
    channel.read_exact(&mut message).expect("a message");
    assert_eq!(message[..4], 2_u32.to_ne_bytes());
}

#[test]
fn resize_by_another_client_and_by_a_monitor_reaches_the_guest() {
    let Some((disk, folder, program, mut client)) = serve("resized", "", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    let mut channel = guest.listen(CONFIG);
    let mut assert_size = |bytes: u64| {
        config_change(&mut channel);
        assert_eq!(guest.capacity(), bytes);
        for kind in [OUT, IN] {
            assert_eq!(last_block(&mut guest, kind, bytes), 0);
            assert_eq!(last_block(&mut guest, kind, bytes + BLOCK as u64), IOERR);
        }
    };
    // Without the lock, and with it: its holder resizes the image for the tool.
    for bytes in [2 * MIB, MIB, 4 * MIB] {
        disk.resize(bytes);
        assert_size(bytes);
    }
    for bytes in [3 * MIB, 2 * MIB] {
        client.done("block_resize", json!({"node-name": "d", "size": bytes}));
        assert_size(bytes);
    }
    program.stop();
    assert_eq!(disk.content().len() as u64, 2 * MIB);
}

/// Images do not grow when their last sector is written.
#[test]
fn size_of_an_image_is_rounded_down_to_sectors() {
    let Some(disk) = new_disk("odd") else {
        return;
    };
    disk.resize(MIB + 1);
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    assert_eq!(guest.capacity(), MIB);
    assert_eq!(last_block(&mut guest, OUT, MIB), 0);
    disk.resize(2 * MIB - 1);
    eventually("the new size", || guest.capacity() == 2 * MIB - 512);
    program.stop();
}

#[test]
fn resize_during_a_job_is_adopted_at_its_end() {
    let Some((disk, folder, program, mut client)) = serve("backed-up", "", "") else {
        return;
    };
    let guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    client.done(
        "blockdev-add",
        json!({"driver": "null-co", "node-name": "t", "size": MIB}),
    );
    let copy = json!({"job-id": "j", "device": "d", "target": "t", "sync": "none"});
    client.done("blockdev-backup", copy);
    disk.resize(2 * MIB);
    eventually("the log says it", || {
        program.stderr().contains("it is adopted when the job ends")
    });
    assert_eq!(guest.capacity(), MIB);
    client.execute("job-cancel id=j");
    eventually("the new size", || guest.capacity() == 2 * MIB);
    program.stop();
}

/// librbd watches images that are open for writing only.
#[test]
fn image_that_is_only_read_has_its_new_size_when_it_is_reopened() {
    let Some(disk) = new_disk("read-resized") else {
        return;
    };
    let folder = Folder::new();
    let line = disk.line_with(",read-only=on", "");
    let (program, mut client) = start(&folder, &line.replace("writable=on", "writable=off"));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    disk.resize(2 * MIB);
    let mut node = disk.node_json("d");
    node["read-only"] = true.into();
    client.done("blockdev-reopen", json!({"options": [node]}));
    eventually("the new size", || guest.capacity() == 2 * MIB);
    assert_eq!(last_block(&mut guest, IN, 2 * MIB), 0);
    program.stop();
}

#[test]
fn image_shrinks_under_load_and_keeps_data_below_its_end() {
    let Some((disk, folder, mut program, _)) = serve("shrinking", "", ",num-queues=2") else {
        return;
    };
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    for bytes in [2 * MIB, MIB, 2 * MIB, MIB + BLOCK as u64, MIB] {
        load.run(200);
        load.fill();
        disk.resize(bytes);
    }
    load.run(200);
    load.drain();
    program.stop();
    load.assert_content(&disk.content());
}

#[test]
fn resize_that_would_cut_a_window_is_reported_and_the_window_stays() {
    let Some(disk) = new_disk("windowed") else {
        return;
    };
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,{} --blockdev raw,node-name=w,file=d,offset={OBJECT},size={OBJECT} {}",
        disk.node(),
        export_of("w", "")
    );
    let (program, mut client) = start(&folder, &line);
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    assert_eq!(last_block(&mut guest, OUT, OBJECT), 0);
    let cut = client.fails("block_resize", json!({"node-name": "d", "size": OBJECT}));
    assert!(cut.starts_with("node 'w' shows bytes"), "{cut}");
    disk.resize(OBJECT + BLOCK as u64);
    eventually("the resize is reported", || {
        let log = program.stderr();
        log.contains("a new size that is not adopted") && log.contains("node 'w' shows bytes")
    });
    assert_eq!(guest.capacity(), OBJECT);
    // There is nothing behind the end of the image, and nothing may seem to be written there.
    assert_eq!(last_block(&mut guest, OUT, OBJECT), IOERR);
    guest.request(0, OUT, 0, 3);
    // The end comes back.
    disk.resize(2 * MIB);
    eventually("the size is adopted", || {
        client.node("d")["image"]["virtual-size"] == 2 * MIB
    });
    assert_eq!(last_block(&mut guest, OUT, OBJECT), 0);
    assert_eq!(read(&mut guest, 0), [3; BLOCK]);
    program.stop();
    // Nothing was written outside of the window.
    let mut expected = vec![0; 2 << 20];
    let object = usize::try_from(OBJECT).unwrap();
    expected[object..object + BLOCK].fill(3);
    expected[2 * object - BLOCK..2 * object].fill(7);
    assert!(disk.content() == expected);
}
