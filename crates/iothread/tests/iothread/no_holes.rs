//! Discard and write-zeroes requests where the disk's file cannot have holes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use block::{Aio, FileOptions, Locking, Node, NodeOptions};
use iothread::{IothreadHandle, IothreadSettings};
use test_support::limited_host::{Call, ramfs_folder, with_errno};

use crate::guest::{DISCARD, Guest, WRITE_ZEROES};
use crate::scsi::{Controller, FIRST, disk, threads};

const BYTES: usize = 1 << 20;
const SECTOR: usize = 512;
/// Of the controller's units.
const BLOCK: usize = 4096;

/// A disk full of ones.
fn full_disk(path: &Path, aio: Aio, direct: bool) -> Arc<Node> {
    fs::write(path, vec![1; BYTES]).unwrap();
    let options = NodeOptions::File(FileOptions {
        path: path.to_owned(),
        direct,
        no_flush: false,
        unmap: true,
        aio,
        aio_max_batch: 0,
        locking: Locking::Off,
        force_share: false,
    });
    Node::open("disk", false, &options).unwrap()
}

/// By each engine. What a ring asks of the kernel needs a file system that cannot; for the others the kernel refuses the call.
fn on_each_disk(test: impl Fn(&Arc<Node>, &Path) + Send + Sync) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let fallocate = [Call::any(libc::SYS_fallocate)];
    with_errno(&fallocate, libc::EOPNOTSUPP, || {
        for aio in [Aio::Native, Aio::Threads] {
            let folder = tempfile::tempdir_in(target).unwrap();
            let path = folder.path().join("disk");
            test(&full_disk(&path, aio, true), &path);
        }
    });
    if let Some(ramfs) = ramfs_folder(target) {
        for aio in [Aio::IoUring, Aio::Threads] {
            let path = ramfs.path().join("disk");
            test(&full_disk(&path, aio, false), &path);
        }
    }
}

/// All ones but in these ranges.
#[track_caller]
fn is_zero_in(path: &Path, node: &Node, ranges: &[(usize, usize)]) {
    let mut model = vec![1; BYTES];
    for (at, len) in ranges {
        model[*at..at + len].fill(0);
    }
    let found = fs::read(path).unwrap();
    assert_eq!(found.len(), BYTES);
    let differs = found.iter().zip(&model).position(|(a, b)| a != b);
    assert_eq!(differs, None, "a byte, by {:?}", node.aio());
}

#[test]
fn virtio_blk_zeroes_are_read_back() {
    on_each_disk(|node, path| {
        let iothread = IothreadHandle::spawn(IothreadSettings::with_id("test")).unwrap();
        let mut guest = Guest::new(64, false);
        let vring = iothread.start_vring(guest.setup(node, 0)).unwrap();
        guest.ask_range(1, WRITE_ZEROES, 8, 16, true);
        guest.ask_range(2, WRITE_ZEROES, 101, 300, true);
        guest.ask_range(3, WRITE_ZEROES, 1000, 24, false);
        guest.ask_range(4, DISCARD, 0, 2048, false);
        guest.submit();
        let statuses: Vec<u8> = guest.wait_all().iter().map(|done| done.status).collect();
        assert_eq!(statuses, [0; 4]);
        vring.stop().unwrap();
        let ranges = [(8, 16), (101, 300), (1000, 24)];
        is_zero_in(
            path,
            node,
            &ranges.map(|(at, len)| (at * SECTOR, len * SECTOR)),
        );
    });
}

#[test]
fn scsi_zeroes_are_read_back() {
    on_each_disk(|node, path| {
        let threads = threads();
        let disks = [disk(FIRST, node)];
        let mut guest = Controller::new(&disks);
        let vrings = guest.start(&threads, &disks);
        guest.greet(FIRST);
        // WRITE SAME (16): with UNMAP and a block of zeroes, with UNMAP and NDOB, with neither.
        let zeroes = [0; BLOCK];
        for (flags, lba, blocks, out) in [
            (0x08, 3, 5, &zeroes[..]),
            (0x09, 20, 100, &[]),
            (0x00, 200, 7, &zeroes[..]),
        ] {
            let mut cdb = [0; 16];
            (cdb[0], cdb[1], cdb[9], cdb[13]) = (0x93, flags, lba, blocks);
            guest.good(2, FIRST, &cdb, out, 0);
        }
        // UNMAP of everything: what cannot be done is not done.
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend(0_u64.to_be_bytes());
        list.extend(256_u32.to_be_bytes());
        list.extend([0; 4]);
        guest.good(3, FIRST, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0);
        for vring in vrings {
            assert!(vring.stop().is_some());
        }
        let ranges = [(3, 5), (20, 100), (200, 7)];
        is_zero_in(
            path,
            node,
            &ranges.map(|(at, len)| (at * BLOCK, len * BLOCK)),
        );
    });
}
