//! Other clients of an image that is served: `qemu-img`, `rbd export`, `rbd bench`.

use std::fs;
use std::process::Command;

use test_support::ceph::Cluster;
use test_support::deadline::Deadline;
use test_support::report;

use crate::disk::{Disk, SOCKET};
use crate::guest::{BLOCK, DISCARD, Guest, IN, OUT, WRITE_ZEROES};
use crate::process::{Folder, Process};
use crate::{MIB, start};

/// Blocks of the disk.
const BLOCKS: u64 = MIB / BLOCK as u64;

/// The disk as a guest reads it.
fn read_all(guest: &mut Guest) -> Vec<u8> {
    let read = |block| {
        guest.request(0, IN, block, 0);
        guest.data(0, 0)
    };
    (0..BLOCKS).flat_map(read).collect()
}

fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len());
    let differing = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differing, None, "first byte that differs");
}

#[test]
fn qemu_img_and_rbd_export_see_completed_writes_while_the_guest_has_the_lock() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    if !report::installed("qemu-img") {
        return;
    }
    let disk = Disk::create(cluster, "compared");
    let folder = Folder::new();
    let (program, _) = start(&folder, &disk.line_with(",discard=unmap", ""));
    let mut guest = Guest::connect(&folder.join(SOCKET), 1);
    // A byte for each block.
    let mut bytes: Vec<u8> = (1..=u8::MAX).chain([1]).collect();
    for (block, byte) in (0..BLOCKS).zip(&bytes) {
        guest.request(0, OUT, block, *byte);
    }
    // An object, and a part of another.
    for (kind, blocks) in [(DISCARD, 16..32), (WRITE_ZEROES, 53..56)] {
        let (first, count) = (blocks.start as u64, blocks.len() as u64);
        assert_eq!(guest.request_range(kind, first, count, false), 0);
        bytes[blocks].fill(0);
    }
    let expected: Vec<u8> = bytes.into_iter().flat_map(|byte| [byte; BLOCK]).collect();
    assert_same(&disk.content(), &expected);
    let file = folder.join("expected");
    fs::write(&file, &expected).unwrap();
    let mut compare = Command::new("qemu-img");
    let image = format!("rbd:rbd/compared:conf={}", cluster.conf().display());
    compare
        .args(["compare", "-f", "raw", "-F", "raw"])
        .arg(file);
    compare.arg(image);
    let output = Process::spawn(compare).ended();
    if output.stderr.contains("Unknown protocol 'rbd'") {
        report::not_run("qemu-block-extra is not installed");
    } else {
        assert_eq!(output.code, Some(0), "{output:?}");
    }
    program.stop();
}

#[test]
fn writes_of_rbd_bench_are_read_and_refused_while_the_guest_has_the_lock() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let disk = Disk::create(cluster, "benched");
    let bench = |bytes| {
        let size = ["--io-size", "4096", "--io-total", bytes];
        let [a, b, c, d] = size;
        ["bench", "--io-type", "write", a, b, c, d, "benched"]
    };
    for (round, bytes) in [(1, "256K"), (2, "1M")] {
        // It fills its blocks with one random byte, which may be 0.
        let deadline = Deadline::default();
        let written = loop {
            cluster.rbd(bench(bytes));
            let written = disk.content();
            if written[BLOCK..].iter().any(|byte| *byte != 0) {
                break written;
            }
            deadline.check("rbd bench writes a byte that is not 0");
        };
        let folder = Folder::new();
        let (program, _) = start(&folder, &disk.line());
        let mut guest = Guest::connect(&folder.join(SOCKET), 1);
        assert_same(&read_all(&mut guest), &written);
        guest.request(0, OUT, 0, round);
        let error = disk.rbd_fails(bench("1M"));
        assert!(error.contains("Read-only"), "{error}");
        let expected = [&[round; BLOCK], &written[BLOCK..]].concat();
        assert_same(&disk.content(), &expected);
        assert_same(&read_all(&mut guest), &expected);
        program.stop();
    }
}
