//! The data of served images, compared with what Ceph's own tools read and write.

use std::process::Command;

use test_support::report;
use test_support::threads::{read_of_each_thread, status_field};
use test_support::verifying::load::VerifyingLoad;

use crate::disk::{Disk, OBJECT, SOCKET, read};
use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, DISCARD, FLUSH, OUT, RequestDriver, WRITE_ZEROES};
use crate::{IOERR, MIB, new_disk, serve, start};

/// Blocks of an object.
const OBJECT_BLOCKS: u64 = OBJECT / BLOCK as u64;

/// Writes one block of each of these objects.
fn fill_objects(guest: &mut RequestDriver, objects: std::ops::Range<u64>) {
    for object in objects {
        guest.request(0, OUT, object * OBJECT_BLOCKS, 7);
    }
}

/// Discards or zeroes objects.
fn clear(guest: &mut RequestDriver, kind: u32, object: u64, objects: u64, unmap: bool) {
    let (first, count) = (object * OBJECT_BLOCKS, objects * OBJECT_BLOCKS);
    assert_eq!(guest.request_range(kind, first, count, unmap), 0);
}

#[test]
fn served_image_holds_what_the_front_end_has_written() {
    let Some(disk) = new_disk("served") else {
        return;
    };
    let folder = Folder::new();
    let mut program = folder.start(&format!("serve {} --socket {SOCKET}", disk.uri()), SOCKET);
    let mut load = VerifyingLoad::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(2000);
    // Also those of Ceph's libraries.
    for thread in read_of_each_thread(program.pid(), "status") {
        let [name, seccomp] = ["Name", "Seccomp"].map(|key| status_field(&thread.text, key));
        assert_eq!(seccomp, "2", "{name} is in a sandbox");
    }
    load.drain();
    program.stop();
    load.assert_content(&disk.content());
    disk.is_closed();
}

#[test]
fn discards_and_thin_zeroes_free_objects_if_they_may_and_thick_zeroes_allocate_them() {
    let Some((disk, folder, program, _)) = serve("zeroes", ",discard=unmap", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    fill_objects(&mut guest, 0..8);
    assert_eq!(disk.objects(), (0..8).collect::<Vec<_>>());
    clear(&mut guest, DISCARD, 0, 2, false);
    assert_eq!(disk.objects(), [2, 3, 4, 5, 6, 7]);
    clear(&mut guest, WRITE_ZEROES, 2, 2, true);
    assert_eq!(disk.objects(), [4, 5, 6, 7]);
    // Those that have data, and one that has none.
    clear(&mut guest, WRITE_ZEROES, 6, 3, false);
    assert_eq!(disk.objects(), [4, 5, 6, 7, 8]);
    guest.request(0, FLUSH, 0, 0);
    for object in 0..8 {
        let expected = if (4..6).contains(&object) { 7 } else { 0 };
        let found = read(&mut guest, object * OBJECT_BLOCKS);
        assert_eq!(found, [expected; BLOCK], "{object}");
    }
    program.stop();

    let (program, _) = start(&folder, &disk.line_with(",discard=ignore", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    clear(&mut guest, DISCARD, 4, 1, false);
    clear(&mut guest, WRITE_ZEROES, 5, 1, true);
    assert_eq!(disk.objects(), [4, 5, 6, 7, 8]);
    for (object, byte) in [(4, 7), (5, 0)] {
        let found = read(&mut guest, object * OBJECT_BLOCKS);
        assert_eq!(found, [byte; BLOCK], "{object}");
    }
    program.stop();
}

#[test]
fn read_only_node_reads_and_takes_no_lock() {
    let Some((disk, folder, program, _)) = serve("read-only", "", "") else {
        return;
    };
    RequestDriver::connect(&folder.join(SOCKET), 1).request(0, OUT, 3, 9);
    program.stop();
    disk.is_closed();
    let line = disk.line_with(",read-only=on", "");
    let (program, _) = start(&folder, &line.replace(",writable=on", ""));
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    assert_eq!(read(&mut guest, 3), [9; BLOCK]);
    assert_eq!(guest.status_of(0, OUT, 3, 1), IOERR);
    guest.request(0, FLUSH, 0, 0);
    assert_eq!((disk.lock_holder(), disk.watchers()), (None, 0));
    program.stop();
}

#[test]
fn snapshot_stays_while_its_image_changes() {
    let Some((disk, folder, program, _)) = serve("changing", "", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    // The lock stays with the daemon, which makes the snapshot for the tool.
    let name = "changing@before";
    disk.cluster.rbd(["snap", "create", "--no-progress", name]);
    guest.request(0, OUT, 0, 2);
    let of_snapshot = Folder::new();
    let uri = Disk::existing(disk.cluster, name).uri();
    let snapshot = of_snapshot.start(&format!("serve {uri} --socket {SOCKET}"), SOCKET);
    let mut reader = RequestDriver::connect(&of_snapshot.join(SOCKET), 1);
    guest.request(0, OUT, 0, 3);
    assert_eq!(read(&mut reader, 0), [1; BLOCK]);
    assert_eq!(read(&mut guest, 0), [3; BLOCK]);
    snapshot.stop();
    program.stop();
}

#[test]
fn qemu_img_sees_completed_writes_while_the_guest_has_the_lock() {
    if !report::installed("qemu-img") {
        return;
    }
    let Some((disk, folder, program, _)) = serve("compared", "", "") else {
        return;
    };
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    let mut expected = vec![0; 1 << 20];
    for (block, byte) in [(0, 1), (17, 2), (255, 3)] {
        guest.request(0, OUT, block, byte);
        let at = usize::try_from(block).unwrap() * BLOCK;
        expected[at..at + BLOCK].fill(byte);
    }
    assert!(disk.content() == expected);
    let file = folder.join("expected");
    std::fs::write(&file, &expected).unwrap();
    let mut compare = Command::new("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "raw"]);
    compare.arg(file).arg(disk.uri());
    let output = Process::spawn(compare).ended();
    if output.stderr.contains("Unknown protocol 'rbd'") {
        report::not_run("qemu-block-extra is not installed");
    } else {
        assert_eq!(output.code, Some(0), "{output:?}");
    }
    program.stop();
}
