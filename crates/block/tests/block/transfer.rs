//! Bytes arrive where they belong, whatever way they take.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use block::{Aio, FileOptions, Node};
use engine::Errno;
use test_support::mounted_folder::MountedFolder;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{file, folder, image, new_image, tmpfs_folder, try_file, ways};

const MIB: usize = 1 << 20;

/// Writes and reads back with every form of memory, and looks at the file from outside.
fn round_trip(node: &Arc<Node>, path: &Path, offset: u64, data: &[u8], segment: usize) {
    let mut rig = Rig::new();
    for skew in [0, 1, 512] {
        let seed = u64::try_from(skew).unwrap();
        let mut data = data.to_vec();
        data[..8].copy_from_slice(&seed.to_le_bytes());
        rig.ok(node, Call::write(offset, &data).cut(segment).skewed(skew));
        let mut outside = vec![0; data.len()];
        let image = fs::File::open(path).unwrap();
        image.read_exact_at(&mut outside, offset).unwrap();
        assert!(outside == data, "what was written, skew {skew}");
        let read = Call::read(offset, data.len()).cut(segment).skewed(skew);
        assert!(rig.ok(node, read) == data, "what was read, skew {skew}");
    }
}

/// Also with more segments than a system call takes, with some that are shorter than a sector, and with many bytes.
#[test]
fn every_way_moves_the_same_bytes() {
    let (_folder, path) = new_image(33 * MIB as u64);
    for how in ways(&path) {
        let node = file(&how);
        for (offset, len, segment) in [
            (0, 4096, 4096),
            (512, 512, 512),
            (8192, 64 * 1024, 4096),
            (4096, 8192, 1000),
            (0, 64 * 1024, 17),
            (512, 1024 * 512, 512),
            (512, 1025 * 512, 512),
            (512, 2500 * 512, 512),
            (MIB as u64 - 512, 2 * MIB + 512, 333_333),
            (MIB as u64 - 512, 16 * MIB, 128 * 1024),
        ] {
            round_trip(&node, &path, offset, &pattern(offset, len), segment);
        }
    }
}

#[test]
fn the_kernel_carries_what_it_can_without_blocking_and_workers_the_rest() {
    let (_folder, path) = new_image(MIB as u64);
    for how in ways(&path) {
        let node = file(&how);
        let carrier = node.aio().unwrap();
        if carrier == Aio::IoUring && !test_support::report::has_io_uring() {
            continue;
        }
        let mut rig = Rig::new();
        let submitted = |rig: &mut Rig, call| {
            let before = rig.submitted();
            rig.ok(&node, call);
            rig.submitted() > before
        };
        let bytes = pattern(1, 8192);
        let carried = carrier != Aio::Threads;
        let ring = carrier == Aio::IoUring;
        // The page cache takes any memory and any offset.
        let lenient = ring && !how.direct;
        for (call, expected) in [
            (Call::read(0, 8192).cut(4096), carried),
            (Call::write(0, &bytes), carried),
            (Call::write(0, &bytes).fua(), carried),
            (Call::flush(), carried),
            (Call::read(0, 8192).skewed(1), lenient),
            (Call::write(0, &bytes).cut(1000), lenient),
            (Call::write_zeroes(0, 512, false), ring),
            (Call::write_zeroes(0, 4096, true), ring),
            (Call::discard(0, 4096), ring),
        ] {
            let shown = format!("{how:?} {call:?}");
            assert_eq!(submitted(&mut rig, call), expected, "{shown}");
        }
        let made = (rig.io.aio_stats().is_some(), rig.io.ring_stats().is_some());
        assert_eq!(made, (carrier == Aio::Native, ring), "made when wanted");
    }
}

#[test]
fn requests_of_nothing_and_empty_segments() {
    let (_folder, path) = new_image(MIB as u64);
    for how in ways(&path) {
        let (node, mut rig) = (file(&how), Rig::new());
        rig.ok(&node, Call::read(0, 0));
        rig.ok(&node, Call::write(0, &[]));
        rig.ok(&node, Call::write_zeroes(0, 0, true).fua());
        rig.ok(&node, Call::discard(0, 0));
        let data = pattern(1, 2048);
        for empty in [1, 1024] {
            for segment in [512, 1000] {
                let form = |call: Call| call.cut(segment).with_empty(empty);
                rig.ok(&node, form(Call::write(512, &data)));
                assert!(rig.ok(&node, form(Call::read(512, 2048))) == data);
            }
            rig.ok(&node, Call::write(0, &[]).with_empty(empty));
            rig.ok(&node, Call::read(0, 0).with_empty(empty));
        }
    }
}

/// Past the end of the file there are zeroes, also when the end is in the middle of a request, of a
/// segment, or of a sector.
#[test]
fn a_file_that_was_truncated_reads_as_zeroes() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = image(folder, "disk", 256 * 1024);
        let data = pattern(7, 256 * 1024);
        for how in ways(&path) {
            let outside = fs::OpenOptions::new().write(true).open(&path).unwrap();
            outside.set_len(256 * 1024).unwrap();
            outside.write_all_at(&data, 0).unwrap();
            let (node, mut rig) = (file(&how), Rig::new());
            for end in [131_072usize, 70_656, 5000, 513, 1, 0] {
                outside.set_len(end as u64).unwrap();
                let mut expected = data[..end].to_vec();
                expected.resize(256 * 1024, 0);
                for (offset, len) in [
                    (0, 256 * 1024),
                    (512, 8192),
                    (69_632, 65_536),
                    (135_168, 512),
                ] {
                    for (segment, skew) in [(len, 0), (512, 0), (4096, 3), (1000, 0)] {
                        let call = Call::read(offset as u64, len).cut(segment).skewed(skew);
                        let found = rig.ok(&node, call);
                        assert!(
                            found == expected[offset..offset + len],
                            "end {end}, offset {offset}, len {len}, segment {segment}, skew {skew}, {how:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_last_sector_need_not_be_whole() {
    let folders = [Some(folder()), tmpfs_folder()];
    for folder in folders.iter().flatten() {
        let path = folder.path().join("disk");
        for how in ways(&path) {
            for bytes in [1, 100, 1000, 5000] {
                the_last_sector_is_exact(&path, &how, bytes);
            }
        }
    }
}

/// The last sector of a file of so many bytes reads as if zeroes followed, and can be written and zeroed as a whole.
pub fn the_last_sector_is_exact(path: &Path, how: &FileOptions, bytes: usize) {
    let (size, last) = (bytes.next_multiple_of(512), pattern(99, 512));
    let at = size - 512;
    let zeroes = |unmap| Call::write_zeroes(at as u64, 512, unmap).fua();
    for (segment, skew) in [(512, 0), (512, 1), (100, 0)] {
        let placed = |call: Call| call.cut(segment).skewed(skew);
        for (call, expected) in [
            (placed(Call::write(at as u64, &last)), &last),
            (zeroes(false), &vec![0; 512]),
            (zeroes(true), &vec![0; 512]),
        ] {
            let mut model = pattern(1, bytes);
            fs::write(path, &model).unwrap();
            let (node, mut rig) = (file(how), Rig::new());
            assert_eq!(node.geometry().size, size as u64);
            model.resize(size, 0);
            let read = rig.ok(&node, placed(Call::read(0, size)));
            assert!(read == model, "{bytes} bytes, {how:?}");
            rig.ok(&node, call);
            model[at..].copy_from_slice(expected);
            assert!(rig.read(&node, 0, size) == model, "{bytes} bytes, {how:?}");
            let mut outside = fs::read(path).unwrap();
            assert!(outside.len() <= size);
            outside.resize(size, 0);
            assert!(outside == model, "{bytes} bytes, {how:?}");
        }
    }
}

#[test]
fn an_error_of_the_disk_is_the_requests_result() {
    let (_folder, path) = new_image(MIB as u64);
    for how in ways(&path) {
        let node = try_file(&how, true).unwrap();
        let refused = Err(Errno::BADF);
        let (calls, expected): (Vec<_>, Vec<_>) = [
            (Call::write(0, &[1; 512]), refused),
            (Call::read(0, 512), Ok(())),
            (Call::write(0, &[1; 512]).skewed(1), refused),
            (Call::write_zeroes(0, 512, false), refused),
        ]
        .into_iter()
        .unzip();
        let outcomes = Rig::new().all(&node, calls);
        let results = outcomes.iter().map(|outcome| outcome.result);
        assert!(results.eq(expected), "{how:?}: {outcomes:?}");
    }
}

/// A full disk is an error, not a wait.
#[test]
fn a_full_disk_is_an_error() {
    let Some(folder) = MountedFolder::small_tmpfs(256) else {
        return;
    };
    let path = image(&folder, "disk", 4 * MIB as u64);
    for how in ways(&path) {
        let (node, mut rig) = (file(&how), Rig::new());
        let data = pattern(1, 2 * MIB);
        for skew in [0, 1] {
            let outcomes = rig.all(&node, vec![Call::write(0, &data).skewed(skew)]);
            assert_eq!(outcomes[0].result, Err(Errno::NOSPC), "{how:?}");
        }
        rig.ok(&node, Call::discard(0, 4 * MIB));
        rig.ok(&node, Call::write(0, &data[..4096]));
    }
}
