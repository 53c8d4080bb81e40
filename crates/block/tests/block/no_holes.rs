//! Tests of files that cannot have holes: zeroes are written, and a discard does nothing.
//!
//! Two seams make the kernel say so. A filter of system calls does for everything that worker threads do, on any file
//! system and without privileges. What the ring asks of the kernel passes no such filter: its requests need a file system that
//! cannot, which a ramfs is.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use block::{Aio, FileOptions, Node};
use engine::Errno;
use test_support::limited_host::{Call as Refused, ramfs_folder, with_errno};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{allocated, cached, file, new_image, ring, ways};
use crate::transfer::the_last_sector_is_exact;

const LEN: usize = 1 << 20;

fn fallocate_with(bits: libc::c_int) -> Refused {
    Refused {
        number: libc::SYS_fallocate,
        with_bits: Some((1, u64::try_from(bits).unwrap())),
    }
}

/// Every way to a file, one after the other: what a worker does passes the filter.
fn each_way(path: &Path, what: impl Fn(&FileOptions)) {
    for how in ways(path) {
        fs::write(path, pattern(1, LEN)).unwrap();
        what(&how);
    }
}

/// Zeroes ranges of all alignments, and checks every byte around them.
pub fn zeroes_are_exact(node: &Arc<Node>) {
    node.set_guest_block_size(512).unwrap().keep();
    let mut rig = Rig::new();
    for (unmap, fua) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut model = pattern(1, LEN);
        rig.ok(node, Call::write(0, &model));
        for (offset, len) in [
            (0, 512),
            (4096, 4096),
            (8704, 512),
            (12_800, 3584),
            (90_624, 100_352),
            (LEN - 512, 512),
            (LEN / 2 + 512, LEN / 4),
        ] {
            let call = Call::write_zeroes(offset as u64, len, unmap);
            rig.ok(node, if fua { call.fua() } else { call });
            model[offset..offset + len].fill(0);
        }
        assert!(rig.read(node, 0, LEN) == model, "unmap {unmap}, fua {fua}");
    }
}

/// What file systems cannot: anything of it, holes, or zeroes that keep their space.
#[test]
fn zeroes_are_written_where_fallocate_cannot() {
    let (_folder, path) = new_image(LEN as u64);
    for cannot in [
        Refused::any(libc::SYS_fallocate),
        fallocate_with(libc::FALLOC_FL_PUNCH_HOLE),
        fallocate_with(libc::FALLOC_FL_ZERO_RANGE),
    ] {
        for errno in [libc::EOPNOTSUPP, libc::ENOSYS] {
            with_errno(&[cannot], errno, || {
                each_way(&path, |how| zeroes_are_exact(&file(how)));
                each_way(&path, |how| the_last_sector_is_exact(&path, how, 5000));
            });
        }
    }
}

#[test]
fn a_discard_does_nothing_where_fallocate_cannot() {
    let (_folder, path) = new_image(LEN as u64);
    let no_holes = fallocate_with(libc::FALLOC_FL_PUNCH_HOLE);
    with_errno(&[no_holes], libc::EOPNOTSUPP, || {
        each_way(&path, |how| {
            // The ring is not filtered.
            if how.aio != Aio::IoUring {
                discards_do_nothing(&file(how), &path);
            }
        });
    });
}

/// The range keeps its data and its space, and what is next to it as well.
fn discards_do_nothing(node: &Arc<Node>, path: &Path) {
    let data = pattern(1, LEN);
    let mut rig = Rig::new();
    rig.ok(node, Call::write(0, &data));
    let full = allocated(path);
    for (offset, len) in [(0, LEN), (512, LEN / 2), (LEN - 512, 512)] {
        // The first is found out, the second is known.
        for _ in 0..2 {
            rig.ok(node, Call::discard(offset as u64, len));
        }
    }
    assert!(rig.read(node, 0, LEN) == data);
    assert_eq!(allocated(path), full);
}

/// Not even with a hole to begin with: a guest that wants zeroes gets them.
#[test]
fn zeroes_are_read_back_on_a_file_system_without_holes() {
    let Some(ramfs) = ramfs_folder(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    let path = ramfs.path().join("disk");
    let threads = FileOptions {
        aio: Aio::Threads,
        ..cached(&path)
    };
    for how in [cached(&path), ring(cached(&path)), threads] {
        fs::write(&path, pattern(1, LEN)).unwrap();
        let node = file(&how);
        assert!(node.passes_discards());
        zeroes_are_exact(&node);
        discards_do_nothing(&node, &path);
        assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
        drop(node);
        the_last_sector_is_exact(&path, &how, 5000);
    }
}

#[test]
fn an_error_of_fallocate_is_the_requests_error() {
    let (_folder, path) = new_image(LEN as u64);
    for (errno, error) in [(libc::EIO, Errno::IO), (libc::ENOSPC, Errno::NOSPC)] {
        with_errno(&[Refused::any(libc::SYS_fallocate)], errno, || {
            each_way(&path, |how| {
                if how.aio == Aio::IoUring {
                    return;
                }
                let calls = vec![
                    Call::discard(0, 4096),
                    Call::write_zeroes(0, 4096, true),
                    Call::write_zeroes(0, 4096, false),
                ];
                for outcome in Rig::new().all(&file(how), calls) {
                    assert_eq!(outcome.result, Err(error), "{how:?}");
                }
                assert!(fs::read(&path).unwrap() == pattern(1, LEN));
            });
        });
    }
}
