//! The data of served images, compared with what Ceph's own tools read and write.

use test_support::ceph::Cluster;
use test_support::threads::status_field;

use crate::disk::{Disk, OBJECT, SOCKET, export_of};
use crate::guest::{BLOCK, DISCARD, FLUSH, Guest, IN, OUT, WRITE_ZEROES};
use crate::load::Load;
use crate::process::{Folder, Process};
use crate::{IOERR, MIB, start};

/// Blocks of an object.
const OBJECT_BLOCKS: u64 = OBJECT / BLOCK as u64;

/// Writes one block of each of these objects.
fn fill_objects(guest: &mut Guest, objects: std::ops::Range<u64>) {
    for object in objects {
        guest.request(0, OUT, object * OBJECT_BLOCKS, 7);
    }
}

/// A block that is read.
fn block(guest: &mut Guest, block: u64) -> Vec<u8> {
    guest.request(0, IN, block, 0);
    guest.data(0, 0)
}

#[test]
fn served_image_holds_what_the_front_end_has_written() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "served");
    let folder = Folder::new();
    let name = format!("rbd:rbd/served:conf={}", cluster.conf().display());
    let mut program = folder.start(&format!("serve {name} --socket {SOCKET}"), SOCKET);
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
    assert_eq!(status_field(&status, "Seccomp"), "2", "it is in a sandbox");
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 2, MIB);
    load.run(2000);
    load.drain();
    program.stop();
    load.assert_content(&disk.content());
    disk.is_closed();
}

#[test]
fn queues_of_several_iothreads_share_an_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let names = ["one-queue", "three-queues", "sixteen-queues"];
    for (name, queues) in names.into_iter().zip([1, 3, 16]) {
        let disk = Disk::create(cluster, name);
        let folder = Folder::new();
        let export = format!(",num-queues={queues},iothread.0=io0,iothread.1=io1");
        let line = format!(
            "--object iothread,id=io0 --object iothread,id=io1 {}",
            disk.line_with("", &export)
        );
        let (mut program, _) = start(&folder, &line);
        let mut load = Load::connect(&mut program, &folder.join(SOCKET), queues, MIB);
        load.run(2000);
        load.read_all();
        program.stop();
        load.assert_content(&disk.content());
    }
}

#[test]
fn discards_and_thin_zeroes_free_objects_and_thick_zeroes_allocate_them() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "zeroes");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line_with(",discard=unmap", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    fill_objects(&mut guest, 0..8);
    assert_eq!(disk.objects(), (0..8).collect::<Vec<_>>());
    let range = |guest: &mut Guest, kind, object, objects, unmap| {
        let (first, count) = (object * OBJECT_BLOCKS, objects * OBJECT_BLOCKS);
        assert_eq!(guest.request_range(kind, first, count, unmap), 0);
    };
    range(&mut guest, DISCARD, 0, 2, false);
    assert_eq!(disk.objects(), [2, 3, 4, 5, 6, 7]);
    range(&mut guest, WRITE_ZEROES, 2, 2, true);
    assert_eq!(disk.objects(), [4, 5, 6, 7]);
    // Those that have data, and one that has none.
    range(&mut guest, WRITE_ZEROES, 6, 3, false);
    assert_eq!(disk.objects(), [4, 5, 6, 7, 8]);
    guest.request(0, FLUSH, 0, 0);
    for object in 0..8 {
        let expected = if (4..6).contains(&object) { 7 } else { 0 };
        let found = block(&mut guest, object * OBJECT_BLOCKS);
        assert_eq!(found, [expected; BLOCK], "{object}");
    }
    program.stop();
}

#[test]
fn discards_without_unmap_keep_objects() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "kept");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line_with(",discard=ignore", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    fill_objects(&mut guest, 0..3);
    assert_eq!(guest.request_range(DISCARD, 0, OBJECT_BLOCKS, false), 0);
    let zeroed = guest.request_range(WRITE_ZEROES, OBJECT_BLOCKS, OBJECT_BLOCKS, true);
    assert_eq!(zeroed, 0);
    assert_eq!(disk.objects(), [0, 1, 2]);
    for (object, byte) in [(0, 7), (1, 0), (2, 7)] {
        assert_eq!(block(&mut guest, object * OBJECT_BLOCKS), [byte; BLOCK]);
    }
    program.stop();
}

#[test]
fn read_only_node_reads_and_takes_no_lock() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "read-only");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    Guest::connect(&folder.join(SOCKET), 1).request(0, OUT, 3, 9);
    program.stop();
    disk.is_closed();
    let line = disk
        .line_with(",read-only=on", "")
        .replace(",writable=on", "");
    let (program, _) = start(&folder, &line);
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    assert_eq!(block(&mut guest, 3), [9; BLOCK]);
    guest.ask(0, 0, OUT, 3, 1);
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), IOERR);
    guest.request(0, FLUSH, 0, 0);
    assert_eq!((disk.lock_holder(), disk.watchers()), (None, 0));
    program.stop();
}

#[test]
fn snapshot_stays_while_its_image_changes() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "changing");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line());
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.request(0, OUT, 0, 1);
    // The lock stays with the daemon, which makes the snapshot for the tool.
    cluster.rbd(["snap", "create", "--no-progress", "changing@before"]);
    guest.request(0, OUT, 0, 2);
    let of_snapshot = Folder::new();
    let name = format!("rbd:rbd/changing@before:conf={}", cluster.conf().display());
    let snapshot = of_snapshot.start(&format!("serve {name} --socket {SOCKET}"), SOCKET);
    let mut reader = Guest::connect(&of_snapshot.join(SOCKET), 1);
    guest.request(0, OUT, 0, 3);
    assert_eq!(block(&mut reader, 0), [1; BLOCK]);
    assert_eq!(block(&mut guest, 0), [3; BLOCK]);
    snapshot.stop();
    program.stop();
}

#[test]
fn windows_and_filters_pass_requests_to_their_part_of_the_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "window");
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,{} \
         --blockdev raw,node-name=w,file=d,offset={OBJECT},size={} \
         --blockdev blkdebug,node-name=f,image=w \
         --export vhost-user-blk,id=e,node-name=f,addr.type=unix,addr.path={SOCKET},writable=on",
        disk.node(),
        2 * OBJECT
    );
    let (mut program, _) = start(&folder, &line);
    let mut load = Load::connect(&mut program, &folder.join(SOCKET), 1, 2 * OBJECT);
    load.run(500);
    load.drain();
    program.stop();
    let content = disk.content();
    let object = usize::try_from(OBJECT).unwrap();
    let (before, rest) = content.split_at(object);
    let (window, after) = rest.split_at(2 * object);
    load.assert_content(window);
    assert!(before.iter().chain(after).all(|byte| *byte == 0));
}

#[test]
fn filter_fails_requests_to_an_image() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "filtered");
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,{} --blockdev blkdebug,node-name=f,image=d,inject-error.0.iotype=write,inject-error.0.once=on {}",
        disk.node(),
        export_of("f", "")
    );
    let (program, _): (Process, _) = start(&folder, &line);
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    guest.ask(0, 0, OUT, 0, 5);
    guest.watch(0, 0);
    assert_eq!(guest.status(0, 0), IOERR);
    guest.request(0, OUT, 0, 6);
    assert_eq!(block(&mut guest, 0), [6; BLOCK]);
    program.stop();
}
