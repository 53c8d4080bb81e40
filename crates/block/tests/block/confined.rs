//! Tests of IoContext and nodes in the daemon's sandbox: everything that iothreads, their workers and control threads do with
//! disks, under the seccomp filter of each kind of thread.

use std::backtrace::Backtrace;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use block::{Aio, FileOptions, Node};
use engine::Errno;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use tempfile::TempDir;
use test_support::limited_host::confined::{
    Operation, all_are_allowed, confine, is_inside, on_an_iothread, on_thread,
};
use test_support::limited_host::{Call as Refused, refuse};

use crate::harness::{Call, Rig, pattern};
use crate::no_holes::zeroes_are_exact;
use crate::storage::{
    LoopDevice, cached, device, file, folder, image, large_block_folder, options, tmpfs_folder,
    ways,
};

const LEN: usize = 1 << 20;

const OPERATIONS: &[Operation] = &[
    Operation::new("files are used", files_are_used),
    Operation::new("the end of a file is written", end_of_a_file_is_written),
    Operation::new("zeroes are written without holes", zeroes_without_holes),
    Operation::new("devices are used", devices_are_used),
    Operation::new("workers come, use memory, fail", workers_come_and_fail),
    Operation::new("workers replace files", workers_replace_files),
    Operation::new("transfers in the call", transfers_in_the_call),
    Operation::new("control threads resize disks", control_threads_resize),
    Operation::aborting("workers abort", workers_abort),
    Operation::aborting("iothreads abort", iothreads_abort),
];

#[test]
fn every_operation_is_allowed_in_the_sandbox() {
    if !is_inside(OPERATIONS) {
        all_are_allowed(
            "confined::every_operation_is_allowed_in_the_sandbox",
            OPERATIONS,
        );
    }
}

/// Disks whose requests workers carry out.
fn threads(path: &Path) -> Vec<FileOptions> {
    let threads = [options(path), cached(path)].map(|how| FileOptions {
        aio: Aio::Threads,
        ..how
    });
    threads.to_vec()
}

/// Reads, writes and flushes, aligned and not, with FUA and without.
fn transfers(rig: &mut Rig, node: &Arc<Node>) {
    let data = pattern(3, 8192);
    for skew in [0, 3] {
        rig.ok(node, Call::write(4096, &data).skewed(skew));
        rig.ok(node, Call::write(16_384, &data).skewed(skew).fua());
        rig.ok(node, Call::write(32_768, &data).cut(1000).skewed(skew));
        rig.ok(node, Call::write(49_152, &data).cut(4096).skewed(skew));
        rig.ok(node, Call::flush());
        for (at, segment) in [(4096, 8192), (16_384, 1000), (32_768, 8192), (49_152, 4096)] {
            let read = Call::read(at, data.len()).cut(segment).skewed(skew);
            assert!(rig.ok(node, read) == data);
        }
    }
}

/// Disks of [`LEN`] bytes behind these options, one file each.
fn disks(how: impl Fn(&Path) -> Vec<FileOptions>, folder: &TempDir) -> Vec<Arc<Node>> {
    let count = how(folder.path()).len();
    let disks = (0..count).map(|at| {
        let path = folder.path().join(format!("disk{at}"));
        fs::write(&path, pattern(1, LEN)).unwrap();
        file(&how(&path)[at])
    });
    disks.collect()
}

/// By Linux AIO, by io_uring and by workers, who may also be the last user of a disk.
fn files_are_used() {
    let folder = folder();
    on_an_iothread(
        || disks(|path| ways(path).to_vec(), &folder),
        |disks| {
            for node in disks {
                let mut rig = Rig::new();
                transfers(&mut rig, &node);
                zeroes_are_exact(&node);
                rig.ok(&node, Call::write(0, &pattern(1, LEN)));
                rig.ok(&node, Call::discard(0, LEN / 2));
                rig.io.set_worker_limits(0, 8).unwrap();
                match node.aio() {
                    Some(Aio::Native) => assert!(rig.io.aio_stats().unwrap().submitted > 0),
                    Some(Aio::IoUring) if rig.io.ring_stats().is_none() => {
                        test_support::report::not_run("no io_uring");
                    }
                    _ => {}
                }
                let shrink_and_close = move || {
                    let found = node.allocations(0, LEN as u64, 8)?;
                    let found: Vec<bool> = found.iter().map(|piece| piece.allocated).collect();
                    assert_eq!(found, [false, true]);
                    node.set_file_or_image_end(5120).map_err(|_| Errno::IO)
                };
                assert_eq!(rig.call(shrink_and_close), Ok(()));
            }
        },
    );
}

/// A guest's sectors are smaller than the disk's blocks, and the file ends within one: it must not become longer, and is cut.
fn end_of_a_file_is_written() {
    let Some((folder, _disk)) = large_block_folder() else {
        return;
    };
    let path = image(&folder, "disk", 5120);
    on_an_iothread(
        || file(&options(&path)),
        |node| {
            node.set_guest_block_size(512).unwrap().keep();
            let (mut rig, data) = (Rig::new(), pattern(2, 512));
            rig.ok(&node, Call::write(4608, &data));
            assert!(rig.read(&node, 4608, 512) == data);
        },
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), 5120);
}

fn zeroes_without_holes() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            // The workers inherit it.
            let calls = [Refused::any(libc::SYS_fallocate)];
            refuse(&calls, libc::EOPNOTSUPP).unwrap();
            for node in disks {
                let mut rig = Rig::new();
                zeroes_are_exact(&node);
                rig.ok(&node, Call::discard(0, LEN));
            }
        },
    );
}

fn devices_are_used() {
    let Some(disk) = LoopDevice::new(LEN as u64, 512) else {
        return;
    };
    for how in threads(&disk.path) {
        on_an_iothread(
            || device(&how),
            |node| {
                let mut rig = Rig::new();
                rig.ok(&node, Call::write(0, &pattern(1, LEN)));
                zeroes_are_exact(&node);
                rig.ok(&node, Call::discard(0, LEN));
            },
        );
    }
}

/// Memory is allocated from the kernel and freed, in small pieces and large ones. A panic fails its request, and is reported on
/// standard error, with a backtrace if that is enabled.
fn workers_come_and_fail() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            let (node, mut rig) = (&disks[0], Rig::new());
            let cpus = rustix::thread::sched_getaffinity(None).unwrap();
            rig.io.set_new_worker_cpus(cpus);
            for (min, max) in [(4, 8), (1, 1), (0, 64)] {
                rig.io.set_worker_limits(min, max).unwrap();
                let calls = (0..128).map(|at| Call::write(at * 4096, &[7; 4096]));
                rig.all_ok(node, calls.collect());
            }
            let result = rig.call(|| {
                for _ in 0..3 {
                    let large = vec![1_u8; 64 << 20];
                    let small: Vec<_> = (1..2000).map(|bytes| vec![1_u8; bytes]).collect();
                    let mut grows = Vec::new();
                    (0..1_000_000_u64).for_each(|number| grows.push(number));
                    assert_eq!(large.len() + small.len() + grows.len(), 68_110_863);
                }
                eprintln!("an error: {}", Backtrace::force_capture());
                Ok(())
            });
            assert_eq!(result, Ok(()));
            assert_eq!(rig.call(|| panic!("a mistake")), Err(Errno::IO));
            assert_eq!(rig.call(|| Ok(())), Ok(()), "the next is carried out");
        },
    );
}

/// A fatal error ends the process by SIGABRT, which leaves a core dump.
fn workers_abort() {
    on_an_iothread(
        || (),
        |()| assert_eq!(Rig::new().call(|| std::process::abort()), Ok(())),
    );
}

fn iothreads_abort() {
    on_an_iothread(|| (), |()| std::process::abort());
}

/// As reservations are saved: beside, stable, locked, renamed.
fn workers_replace_files() {
    let folder = folder();
    fs::write(folder.path().join("file"), "old").unwrap();
    on_an_iothread(
        || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap()
        },
        |folder| {
            let replaced = Rig::new().call(move || {
                let missing = rustix::fs::unlinkat(&folder, "new", AtFlags::empty());
                assert_eq!(missing, Err(Errno::NOENT));
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let new = rustix::fs::openat(&folder, "new", flags, Mode::RUSR | Mode::WUSR)?;
                rustix::fs::flock(&new, FlockOperation::NonBlockingLockExclusive)?;
                let mut new = fs::File::from(new);
                new.write_all(b"new").unwrap();
                new.sync_all().unwrap();
                rustix::fs::renameat(&folder, "new", &folder, "file")?;
                rustix::fs::fsync(&folder)
            });
            assert_eq!(replaced, Ok(()));
        },
    );
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"new");
}

fn transfers_in_the_call() {
    let Some(folder) = tmpfs_folder() else {
        return;
    };
    on_an_iothread(
        || disks(|path| vec![options(path)], &folder),
        |disks| {
            let (node, mut rig) = (&disks[0], Rig::new());
            rig.attach(node);
            // It must have answered at once for a while.
            for _ in 0..2000 {
                transfers(&mut rig, node);
                let stats = rig.io.aio_stats().unwrap();
                if stats.synchronous > 100 {
                    return;
                }
            }
            panic!("a disk in memory answers within the call");
        },
    );
}

fn control_threads_resize() {
    let folder = folder();
    let path = folder.path().join("made");
    on_thread("control", || {
        confine();
        block::create_sparse_or_check_size(&path, LEN as u64).unwrap();
        for how in ways(&path) {
            let node = file(&how);
            for size in [2 * LEN as u64, LEN as u64] {
                let end = node.check_size_and_compute_disk_end_offset(size).unwrap();
                node.set_file_or_image_end(end).unwrap();
            }
            assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
        }
    });
}
